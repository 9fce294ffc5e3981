# SPDX-License-Identifier: Apache-2.0
"""Kafka Connect in standalone mode beside a cluster: a worker with connectors, and their files.

    with KraftCluster(brokers=1, routes=Route.INGRESS) as cluster:
        servers = through_sidecar(cluster, 1)
        worker = start_connect(cluster, servers, tmp_path, [file_sink("files", "orders", tmp_path / "orders.txt")])
        ...
        worker.stop()

Its jars are fetched when it first starts. Its version is its own: see VERSION.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from weir.lab import jars
from weir.lab.cluster import Cluster
from weir.lab.network import LOOPBACK, Ports
from weir.lab.processes import Process
from weir.lab.settings import properties_text

_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
_STORED = ("config", "offset", "status")
_MIRROR_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"

VERSION: Final = "4.3.1"
"""Of Kafka's Connect: the newest whose file and mirror connectors could be fetched. Those of 4.3 need its clients."""

Connector = Mapping[str, object]
"""A connector's configuration by Kafka's names; `name` is one of them."""


def through_sidecar(cluster: Cluster, broker_id: int) -> str:
    """Return the address at which clients reach a broker, and stay, through its sidecar."""
    return f"{LOOPBACK}:{cluster.places[broker_id].advertised}"


def file_sink(name: str, topic: str, file: Path, **more: object) -> Connector:
    """Write a topic's values to a file, one a line."""
    kind = "org.apache.kafka.connect.file.FileStreamSinkConnector"
    return {"name": name, "connector.class": kind, "tasks.max": 1, "topics": topic, "file": file, **more}


def file_source(name: str, topic: str, file: Path, **more: object) -> Connector:
    """Read a file's lines into a topic."""
    kind = "org.apache.kafka.connect.file.FileStreamSourceConnector"
    return {"name": name, "connector.class": kind, "tasks.max": 1, "topic": topic, "file": file, **more}


def mirror_source(name: str, source: str, target: str, topic: str, **more: object) -> Connector:
    """MirrorMaker 2's flow of one topic from `source` to `target`, which may be one cluster: it is renamed."""
    return {
        "name": name,
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "tasks.max": 1,
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": source,
        "target.cluster.bootstrap.servers": target,
        "topics": topic,
        "replication.factor": 1,
        "offset-syncs.topic.replication.factor": 1,
        "sync.topic.acls.enabled": False,
        "key.converter": _MIRROR_CONVERTER,
        "value.converter": _MIRROR_CONVERTER,
        **more,
    }


def start_connect(cluster: Cluster, servers: str, folder: Path, connectors: Sequence[Connector]) -> Process:
    """Start a worker with these connectors; its files are in `folder`. It ends with the cluster, or by `stop`."""
    folder.mkdir(parents=True, exist_ok=True)
    worker = {
        "bootstrap.servers": servers,
        "key.converter": _CONVERTER,
        "value.converter": _CONVERTER,
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 1000,
        "listeners": f"http://{LOOPBACK}:0",
        "plugin.discovery": "only_scan",  # Connect's own plug-ins have no service files in part
    }
    files = [_written(folder / "worker.properties", worker)]
    files += [_written(folder / f"{one['name']}.properties", one) for one in connectors]
    main_class = "org.apache.kafka.connect.cli.ConnectStandalone"
    return _started(cluster, main_class, files)


def start_exactly_once_connect(
    cluster: Cluster, servers: str, folder: Path, connectors: Sequence[Connector]
) -> Process:
    """Start a worker of a Connect cluster whose sources are transactional; its connectors are set over its REST API."""
    folder.mkdir(parents=True, exist_ok=True)
    with Ports() as ports:
        port = ports.take()
    topics = {f"{kind}.storage.topic": f"connect-{kind}{'s' * (kind != 'status')}" for kind in _STORED}
    worker = {
        "bootstrap.servers": servers,
        "group.id": "connect-lab",
        "exactly.once.source.support": "enabled",
        "key.converter": _CONVERTER,
        "value.converter": _CONVERTER,
        **topics,
        **{f"{kind}.storage.replication.factor": 1 for kind in _STORED},
        "offset.storage.partitions": 1,
        "status.storage.partitions": 1,
        "listeners": f"http://{LOOPBACK}:{port}",
        "plugin.discovery": "only_scan",
    }
    file = _written(folder / "distributed.properties", worker)
    main_class = "org.apache.kafka.connect.cli.ConnectDistributed"
    process = _started(cluster, main_class, [file])

    def takes(connector: Connector) -> bool:
        config = {name: str(value) for name, value in connector.items()}
        url = f"http://{LOOPBACK}:{port}/connectors/{connector['name']}/config"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(config).encode(), headers, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - http
                return bool(answer.status < 300)
        except OSError:  # it is not up yet, or has no leader
            return False

    for connector in connectors:
        cluster.wait_for(f"Connect to take {connector['name']}", lambda one=connector: takes(one), 90, 0.5)  # type: ignore[misc]
    return process


def _started(cluster: Cluster, main_class: str, files: Sequence[str]) -> Process:
    more = jars.ensure(f"connect-{VERSION}")
    return cluster.java_tool(
        "connect", main_class, files, seconds=None, more_jars=more, log_level="info", version=VERSION
    )


def _written(file: Path, properties: Mapping[str, object]) -> str:
    file.write_text(properties_text(properties))
    return str(file)
