# SPDX-License-Identifier: Apache-2.0
"""A cluster that answers the commands for many sidecars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.commands import Admin
from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS
from weir.control.cluster_admin import Partition, PartitionState, Reassignment, ThrottleSetting
from weir.control.errors import ControlError
from weir.planning.move_throttle import ConfigChange

RATE = ThrottleSetting("broker", "1", LEADER_RATE, "5000000", "DYNAMIC_BROKER_CONFIG")


LIST = ThrottleSetting("topic", "orders", LEADER_REPLICAS, "*", "DYNAMIC_TOPIC_CONFIG")


DEFAULT = ThrottleSetting("broker", "2", FOLLOWER_RATE, "7", "DYNAMIC_DEFAULT_BROKER_CONFIG")


CLUSTER = ["--bootstrap-server", "127.0.0.1:1"]


class MadeUpCluster:
    """Stands in for ClusterAdmin: two brokers with one topic."""

    def __init__(self) -> None:
        self.hosts = {1: "127.0.0.1", 2: "127.0.0.2"}
        self.moves: dict[Partition, Reassignment] = {}
        self.in_sync: tuple[int, ...] = (1, 2)
        self.throttles = [RATE, LIST, DEFAULT]
        self.changes: list[ConfigChange] = []
        self.refused: dict[str, str] = {}
        self.command_config: Path | None = None
        self.gone: set[int] = set()
        self.patience_seconds = 10.0

    def brokers(self) -> list[int]:
        return sorted(self.hosts)

    def broker_hosts(self) -> dict[int, str]:
        return self.hosts

    def partitions(self) -> dict[Partition, PartitionState]:
        return {Partition("orders", 0): PartitionState(1, (1, 2), self.in_sync)}

    def reassignments(self) -> dict[Partition, Reassignment]:
        return self.moves

    def throttle_settings(self, brokers: list[int], topics: list[str]) -> list[ThrottleSetting]:
        assert self.patience_seconds == (0 if brokers else 10)
        if gone := self.gone.intersection(brokers):
            raise ControlError("Describing configs", f"UnknownBrokerIdError: {min(gone)}")
        asked = {*map(str, brokers), *topics}
        return [throttle for throttle in self.throttles if throttle.name in asked]

    def change_configs(self, changes: list[ConfigChange]) -> dict[str, str]:
        self.changes += changes
        return self.refused


def say(admin: Admin, told: dict[str, Any]) -> None:
    admin.answers["/v1/status"] = (200, json.dumps(told).encode())
