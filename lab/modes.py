# SPDX-License-Identifier: Apache-2.0
"""The two modes that Kafka runs in, KRaft (3.3 and later) and ZooKeeper (up to 3.9), and the levels of each by name.

One more Kafka is one more row in `_ROWS`, and its lists of jars, which `weir.lab.manifest` writes.
"""

from __future__ import annotations

import base64
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weir.lab import jars
from weir.lab.broker import Broker, ZooKeeper
from weir.lab.cluster import Cluster
from weir.lab.network import Ports
from weir.lab.settings import (
    SESSION_TIMEOUT_MS,
    Place,
    has_record_batches,
    kraft_properties,
    properties_text,
    zookeeper_config,
    zookeeper_mode_properties,
)

_START_SECONDS = 60

_ROWS: Final[tuple[tuple[str, str, Mapping[str, int]], ...]] = (
    (
        "zookeeper",
        "3.9.2",
        {
            "0.8.2": 0,
            "0.9.0": 1,
            "0.10.0": 2,
            "0.10.1": 3,
            "0.11.0-IV0": 4,
            "0.11.0": 5,
            "1.1": 7,
            "2.0": 8,
            "2.1": 10,
            "2.3": 11,
            "2.8": 12,
            "3.4": 13,
            "3.5-IV0": 14,
            "3.5": 15,
            "3.7": 16,
            "3.9": 17,
        },
    ),
    # No KRaft cluster begins below 3.3: none fetches with v12.
    ("kraft", "3.9.2", {"3.4": 13, "3.5-IV0": 14, "3.5": 15, "3.7": 16, "3.9": 17}),
    ("kraft", "4.0.2", {"4.0": 17}),
    ("kraft", "4.1.2", {"4.1": 18}),
    ("kraft", "4.2.2", {"4.2": 18}),
    ("kraft", "4.3.1", {"4.3": 18}),
    ("kraft", "4.4.0", {"4.4": 18}),
)
"""Mode, version of the jars, and the Fetch version that replicas use at each level.

The last row is the Kafka that the demo and the tests run first, with its tools. Connect is lab.connect.VERSION.
"""

_ZOOKEEPER_KAFKA: Final = _ROWS[0][1]
_NEWEST_KAFKA: Final = _ROWS[-1][1]


class KraftCluster(Cluster):
    """Brokers in KRaft mode; broker 1 is the only controller too. From 4.1 on replicas fetch with Fetch v18.

    Clients reach brokers on a listener of their own, which no sidecar stands before. `metadata_version` (such as
    3.9-IV0) sets an older level than the newest, and with it an older Fetch version. Other options: see LabOptions.
    """

    def __init__(
        self, brokers: int = 3, *, version: str = _NEWEST_KAFKA, metadata_version: str | None = None, **options: Any
    ) -> None:
        super().__init__(version, brokers, **options)
        self._metadata_version = metadata_version
        self._cluster_id = _kafka_uuid()

    @property
    def controller(self) -> int:
        """Broker 1: the admin client would be told any broker."""
        return self.broker_ids[0]

    def _prepare(self, ports: Ports) -> None:
        self._controller_port = ports.take()

    def _client_port(self, advertised: int, ports: Ports) -> int:
        return ports.take()

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        return kraft_properties(place, self.controller, str(data))

    def _wait_for_prepared(self) -> None:
        """Format the folders: each is told whose it is, and the controller's holds the features to start with.

        Kafka's own tool writes those, the same for every cluster of a level but where users are among them. They are
        kept, so that other clusters save the start of a JVM.
        """
        options = self._format_options()
        kept = jars.kraft_features(self.version, self._metadata_version)
        is_kept = kept.is_dir() and not options
        controller = self.brokers[self.controller]
        for broker in self.brokers.values():
            if is_kept or broker is not controller:
                self._write_whose(broker)
        if is_kept:
            shutil.copytree(kept, controller.data, dirs_exist_ok=True)
            return
        level = ["--release-version", self._metadata_version] if self._metadata_version else []
        arguments = ["format", "-t", self._cluster_id, "-c", str(controller.properties), *level, *options]
        self.java_tool("format", "kafka.tools.StorageTool", arguments)
        if not options:
            jars.keep(controller.data, "*.checkpoint", kept)

    def _write_whose(self, broker: Broker) -> None:
        """Write the one file that a log directory without metadata needs, into each of the broker's."""
        lines = broker.properties.read_text().splitlines()
        (folders,) = [line.partition("=")[2] for line in lines if line.startswith("log.dirs=")]
        for folder in folders.split(","):
            identity = {
                "version": 1,
                "cluster.id": self._cluster_id,
                "node.id": broker.broker_id,
                "directory.id": _kafka_uuid(),
            }
            (Path(folder) / "meta.properties").write_text(properties_text(identity))

    def _format_options(self) -> list[str]:
        """Return further options of the tool that formats the controller's folder."""
        return []


class ZooKeeperCluster(Cluster):
    """Brokers in ZooKeeper mode; their inter.broker.protocol.version decides what replicas fetch with (0.10.1: v3).

    There is one listener, so with an ingress the clients' connections pass the sidecar too. Other options: see
    LabOptions.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        version: str = _ZOOKEEPER_KAFKA,
        inter_broker_protocol_version: str = "0.10.1",
        **options: Any,
    ) -> None:
        super().__init__(version, brokers, **options)
        self._level = inter_broker_protocol_version
        self._zookeeper: ZooKeeper | None = None

    @property
    def client_properties(self) -> dict[str, object]:
        """Levels below 0.11 have no message format that could hold an idempotent producer's ids."""
        return {} if has_record_batches(self._level) else {"enable.idempotence": False}

    def _prepare(self, ports: Ports) -> None:
        port = ports.take()
        home = self._lab.folder / "zookeeper"
        home.mkdir()
        config = home / "zoo.cfg"
        config.write_text(zookeeper_config(port, str(home / "data")))
        main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = self._java(main_class, [str(config)], heap_mb=128)
        self._zookeeper = ZooKeeper(self._lab, command, self._lab.log("zookeeper"), port)
        self._zookeeper.start()

    def _wait_for_prepared(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.wait_until_up(_START_SECONDS)

    def _client_port(self, advertised: int, ports: Ports) -> int:
        return advertised

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        port = self._zookeeper.port if self._zookeeper else 0
        return zookeeper_mode_properties(place, port, self._level, str(data))

    def _before_restart(self, broker: Broker) -> None:
        """Wait for ZooKeeper to forget a killed broker: it refuses the new one while the old one's session lives."""
        time.sleep(max(0.0, broker.ended_at + SESSION_TIMEOUT_MS / 1000 + 1 - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run a cluster: `kafka` is the version of its jars, `level` what its brokers may use of each other.

    `fetch_version` is what its replicas fetch with, as sidecars between real brokers counted it
    (tests/lab/test_cluster_integration.py).
    """

    name: str
    kafka: str
    zookeeper: bool
    level: str
    fetch_version: int

    def cluster(self, brokers: int = 3, **options: Any) -> Cluster:
        """Return such a cluster, not started yet. Options: see LabOptions."""
        cluster: Cluster
        options = {"version": self.kafka, **options}
        if self.zookeeper:
            cluster = ZooKeeperCluster(brokers, inter_broker_protocol_version=self.level, **options)
        else:
            cluster = KraftCluster(brokers, metadata_version=self.level, **options)
        cluster.fetch_version = self.fetch_version
        return cluster


MODES: Final = {
    f"{kind}-{level}": Mode(f"{kind}-{level}", kafka, kind == "zookeeper", level, version)
    for kind, kafka, levels in _ROWS
    for level, version in levels.items()
}
"""Every mode by name: each Fetch version that Kafka's replicas use (they never used v6 and v9), and each 4.x."""

NEWEST: Final = list(MODES.values())[-1]
"""The mode of the Kafka that the demo and the tests run first."""

CORNERS: Final = (MODES["zookeeper-0.10.1"], MODES["zookeeper-2.8"], NEWEST)
"""One mode of each kind of Fetch: without sessions (v3), with sessions and names (v12), the newest (v18)."""


def _kafka_uuid() -> str:
    """Return a random id as org.apache.kafka.common.Uuid writes it: base64 without padding, no leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
