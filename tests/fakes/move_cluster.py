# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory for moves: it keeps replicas, moves and settings, and fails when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from tests.fakes.clock import MovedClock
from weir.control import move_admin
from weir.control.cluster_admin import PartitionState
from weir.control.errors import ControlError
from weir.control.move_admin import MoveAdmin, ReplicaLog
from weir.planning.assignment import Brokers, Partition, Reassignment, Replica
from weir.planning.move_throttle import ConfigChange, Standing


def make(change: ConfigChange, held: dict[str, str]) -> None:
    """Change what a broker or a topic has, as Kafka changes it (ConfigurationControlManager.java)."""
    entries = [entry for entry in held.get(change.setting, "").split(",") if entry]
    values = change.value.split(",")
    match change.operation:
        case "set":
            held[change.setting] = change.value
        case "delete":
            held.pop(change.setting, None)
        case "append":
            entries += [value for value in values if value not in entries]
            assert "*" not in entries or entries == ["*"], "Kafka refuses such a list"
            held[change.setting] = ",".join(entries)
        case "subtract":
            held[change.setting] = ",".join(entry for entry in entries if entry not in values)


class FakeCluster(MoveAdmin):
    """Stands in for MoveAdmin. `size` is each partition's bytes; `copied` those that a new replica has of it.

    `before_each` is called with the name of each request before it is answered, and may raise.
    """

    def __init__(
        self, replicas: Mapping[Partition, Brokers], brokers: Sequence[int] = (1, 2, 3), size: int = 1000
    ) -> None:
        self.replicas = dict(replicas)
        self.alive = set(brokers)
        self.size = size
        self.grown_per_look = 0
        self.copied: dict[Replica, int] = {}
        self.moving: dict[Partition, Reassignment] = {}
        self.rates: dict[int, dict[str, str]] = {broker: {} for broker in brokers}
        self.lists: dict[str, dict[str, str]] = {partition.topic: {} for partition in replicas}
        self.refuses: dict[Partition, str] = {}
        self.leaderless: set[Partition] = set()
        self.hidden: set[str] = set()
        """Topics whose settings the user may not read."""
        self.log_dirs: dict[Replica, list[ReplicaLog]] = {}
        self.makes_replicas_at_once = False  # else one is there when its move has ended
        self.requests: list[str] = []
        self.connections = 0
        self.before_each: Callable[[str], None] = lambda name: None
        self.clock: MovedClock = MovedClock(0.0)
        self.shows_late_seconds = 0.0
        """How long after a change of a setting it shows."""
        self._shown: list[tuple[float, Standing]] = []
        self._id = "cluster"

    @property
    def throttles(self) -> Standing:
        """What is set."""
        return Standing(
            {broker: dict(own) for broker, own in self.rates.items() if own},
            {topic: dict(own) for topic, own in self.lists.items() if own},
        )

    def connect(self, servers: Sequence[str] = (), **options: object) -> FakeCluster:
        """A new connection to it."""
        self.connections += 1
        return self

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have `weir` connect to it, whatever the address; time passes in it alone."""
        monkeypatch.setattr(move_admin, "MoveAdmin", self.connect)
        monkeypatch.setattr("time.sleep", self.sleep)
        monkeypatch.setattr("time.monotonic", self.clock)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.move(seconds)

    def end_moves(self, *partitions: Partition) -> None:
        """Bring moves to their end; without names, all."""
        for partition in partitions or tuple(self.moving):
            self.replicas[partition] = self.moving.pop(partition).target

    def delete_topic(self, topic: str) -> None:
        for partition in [p for p in self.replicas if p.topic == topic]:
            del self.replicas[partition]
            self.moving.pop(partition, None)
        del self.lists[topic]

    # -- MoveAdmin -----------------------------------------------------------------------------------

    def close(self) -> None:
        pass

    def cluster_id(self) -> str:
        self._request("cluster_id")
        return self._id

    def brokers(self) -> list[int]:
        self._request("brokers")
        return sorted(self.alive)

    def racks(self) -> dict[int, str | None]:
        return dict.fromkeys(self.brokers())

    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        return self.existing_partitions({p.topic for p in self.replicas} if topics is None else topics)

    def existing_partitions(self, topics: Iterable[str]) -> dict[Partition, PartitionState]:
        self._request("partitions")
        wanted = set(topics)
        return {
            partition: PartitionState(-1 if partition in self.leaderless else brokers[0], self._all(partition), brokers)
            for partition, brokers in self.replicas.items()
            if partition.topic in wanted
        }

    def reassignments(self) -> dict[Partition, Reassignment]:
        self._request("reassignments")
        return dict(self.moving)

    def try_to_reassign(self, moves: Mapping[Partition, Brokers | Sequence[int] | None]) -> dict[Partition, str]:
        self._request("reassign")
        refused = {}
        for partition, brokers in moves.items():
            if partition in self.refuses:
                refused[partition] = self.refuses[partition]
            elif brokers is None:
                self.moving.pop(partition, None)
            else:
                before = self.replicas[partition]
                adding = tuple(broker for broker in brokers if broker not in before)
                removing = tuple(broker for broker in before if broker not in brokers)
                self.moving[partition] = Reassignment((*brokers, *removing), adding, removing)
                if not adding:
                    self.end_moves(partition)
        return refused

    def own_throttles(
        self, brokers: Iterable[int] = (), topics: Iterable[str] = (), others: Iterable[str] = ()
    ) -> tuple[dict[int, dict[str, str]], dict[str, dict[str, str]]]:
        self._request("describe_configs")
        topics = [*topics, *(topic for topic in others if topic not in self.hidden)]
        if hidden := self.hidden.intersection(topics):
            raise ControlError("Describing configs", f"{min(hidden)}: nothing came back")
        asked = list(brokers)
        if missing := [broker for broker in asked if broker not in self.alive]:
            raise ControlError("Describing configs", f"broker {missing[0]} gives no answer")
        shown = [was for at, was in self._shown if at > self.clock() - self.shows_late_seconds]
        rates, lists = (shown[0].rates, shown[0].lists) if shown else (self.rates, self.lists)
        return (
            {broker: dict(rates.get(broker, {})) for broker in asked},
            {topic: dict(lists.get(topic, {})) for topic in topics if topic in self.lists},
        )

    def change_configs(self, changes: Iterable[ConfigChange]) -> dict[str, str]:
        self._request("alter_configs")
        if self.shows_late_seconds:
            self._shown.append((self.clock(), self.throttles))
        refused = {}
        for change in changes:
            if change.kind == "topic" and change.name not in self.lists:
                refused[f"topic {change.name}"] = "unknown topic"
                continue
            make(change, self.rates[int(change.name)] if change.kind == "broker" else self.lists[change.name])
        return refused

    def replica_logs(
        self, brokers: Iterable[int], partitions: Iterable[Partition]
    ) -> dict[Replica, tuple[ReplicaLog, ...]]:
        self._request("describe_log_dirs")
        self.size += self.grown_per_look
        wanted = set(partitions)
        found: dict[Replica, tuple[ReplicaLog, ...]] = {}
        for partition in wanted & set(self.replicas):
            for broker in set(self._all(partition)) & set(brokers):
                replica = Replica(*partition, broker)
                size = self.size if broker in self.replicas[partition] else self.copied.get(replica, 0)
                logs = self.log_dirs.get(replica, [ReplicaLog("/data", size, False)])
                found[replica] = tuple(logs)
        return found

    def directories(self, brokers: Iterable[int], partition: Partition) -> dict[int, frozenset[str]]:
        return dict.fromkeys(set(brokers) & self.alive, frozenset(("/data", "/other")))

    def move_log_dirs(self, log_dirs: Mapping[Replica, str]) -> frozenset[Replica]:
        self._request("alter_replica_log_dirs")
        missing = set()
        for replica, path in log_dirs.items():
            there = self._all(replica.of) if self.makes_replicas_at_once else self.replicas[replica.of]
            if replica.broker not in there:
                missing.add(replica)
            elif path != "/data":
                self.log_dirs[replica] = [ReplicaLog("/data", 1, False), ReplicaLog(path, 0, True)]
            else:
                self.log_dirs.pop(replica, None)
        return frozenset(missing)

    def _all(self, partition: Partition) -> Brokers:
        move = self.moving.get(partition)
        return move.replicas if move is not None else self.replicas[partition]

    def _request(self, name: str) -> None:
        self.requests.append(name)
        self.before_each(name)
