# SPDX-License-Identifier: Apache-2.0
"""One broker with a sidecar before it, and the programs that drive foreign clients, built where their tools are.

`KAFKA=3.9.2 make clients` takes another Kafka than the newest, and Java's client of that version.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.clients.drivers import Drivers
from weir.lab.cluster import Cluster
from weir.lab.modes import KraftCluster
from weir.lab.settings import Route


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    version = {"version": os.environ["KAFKA"]} if "KAFKA" in os.environ else {}
    with KraftCluster(brokers=1, routes=Route.INGRESS, **version) as running:
        # A first group waits for its coordinator: from here on all begin alike, without a limit and with one.
        first = Consumer({"bootstrap.servers": running.bootstrap_servers[0], "group.id": "first"})

        def has_coordinator() -> bool:
            try:
                first.committed([TopicPartition("none", 0)], timeout=10)
            except KafkaException:
                return False
            return True

        running.wait_for("a coordinator", has_coordinator, 60)
        first.close()
        yield running


@pytest.fixture(scope="session")
def drivers(cluster: Cluster) -> Iterator[Drivers]:
    with tempfile.TemporaryDirectory(prefix="weir-clients-") as folder:
        yield Drivers(Path(folder), cluster.version)
