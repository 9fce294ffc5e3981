# SPDX-License-Identifier: Apache-2.0
"""What the tests of captures share: what they need of the machine, and what must hold while brokers are captured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.moves import assert_read_once
from weir.lab.hosted import HostedCluster
from weir.lab.hosts import missing
from weir.lab.produce import LiveProducer, latency
from weir.lab.sidecar import Sidecar

CAPTURES = [
    pytest.mark.integration,
    pytest.mark.skipif(missing() is not None, reason=f"no hosts can be made here: {missing()}"),
    pytest.mark.skipif(shutil.which("nft") is None, reason="no nft here: install nftables"),
]
"""The marks of a module whose tests capture connections."""

LIVE_RATE = 20
"""Records/s: one is on its way whenever something is cut, and each is looked at."""


@contextmanager
def unharmed(cluster: HostedCluster, live: str, p99_seconds: float = 5.0) -> Iterator[LiveProducer]:
    """Produce with acks=all while the block runs: every acked record is there once, and no ISR has shrunk."""
    shrunk = shrinks(cluster)
    with LiveProducer(cluster.bootstrap_servers, live, [0], rate=LIVE_RATE) as producer:
        yield producer
    assert_read_once(cluster, live, producer)
    assert shrinks(cluster) == shrunk
    assert latency(producer.acked, 0.99) < p99_seconds


def shrinks(cluster: HostedCluster) -> int:
    return sum(broker.log.read_text().count("Shrinking ISR") for broker in cluster.brokers.values())


def links(sidecar: Sidecar, side: str) -> float:
    return sidecar.metrics().value("weir_connections", side=side)


def passes_directly(cluster: HostedCluster, broker: int) -> bool:
    """Whether no connection of a broker's listener comes from the sidecar's ports."""
    listed = cluster.hosts.run(broker, "nft", "list", "tables")
    return "weir" not in listed
