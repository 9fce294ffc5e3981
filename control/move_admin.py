# SPDX-License-Identifier: Apache-2.0
"""What only moves ask of a cluster: the throttles of single brokers and topics, and the logs of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import NoError, ReplicaNotAvailableError
from kafka.structs import TopicPartitionReplica

from weir.control.cluster_admin import ClusterAdmin, ThrottleSetting
from weir.control.errors import ControlError
from weir.planning.assignment import Partition, Replica
from weir.planning.move_throttle import ConfigChange


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """A replica's log in a log directory: its bytes. `is_future`: it is being moved here from another directory."""

    path: str
    size: int
    is_future: bool


class MoveAdmin(ClusterAdmin):
    """A ClusterAdmin that can do all that a move needs."""

    def own_throttles(
        self, brokers: Iterable[int] = (), topics: Iterable[str] = (), others: Iterable[str] = ()
    ) -> tuple[dict[int, dict[str, str]], dict[str, dict[str, str]]]:
        """Return Kafka's own throttles that are set for single brokers and topics, defaults left out.

        Topics that do not exist are left out; a broker that gives no answer is an error. `others` are topics that the
        user may have no right to describe: those are left out, too.
        """
        rates = self._throttles_of("broker", brokers)
        lists = {**self._throttles_of("topic", topics, "gone"), **self._throttles_of("topic", others, "hidden")}
        return {int(name): _own(found) for name, found in rates.items()}, {n: _own(found) for n, found in lists.items()}

    def change_configs(self, changes: Iterable[ConfigChange]) -> dict[str, str]:
        """Change single settings, incrementally. Returns why, by `topic orders`, for each resource that was refused."""
        by_resource: dict[tuple[str, str], dict[str, tuple[AlterConfigOp, str | None]]] = {}
        for change in changes:
            value = (AlterConfigOp[change.operation.upper()], change.value)
            by_resource.setdefault((change.kind, change.name), {})[change.setting] = value
        resources = [
            ConfigResource(ConfigResourceType[kind.upper()], name, values)
            for (kind, name), values in by_resource.items()
        ]
        if not resources:
            return {}
        results = self._ask(
            "Changing configs",
            lambda client: client.alter_configs(resources, raise_on_unknown=False, incremental=True),
        )
        return {
            f"{kind} {name}": str(said)
            for kind, by_name in results.items()
            for name, said in by_name.items()
            if said != "OK"
        }

    def replica_logs(
        self, brokers: Iterable[int], partitions: Iterable[Partition]
    ) -> dict[Replica, tuple[ReplicaLog, ...]]:
        """Return the logs that brokers hold of partitions. A replica without a log is left out."""
        found: dict[Replica, tuple[ReplicaLog, ...]] = {}
        for answer in self._log_dirs(brokers, partitions):
            for log_dir in answer["log_dirs"]:
                for described_topic in log_dir["topics"]:
                    for entry in described_topic["partitions"]:
                        replica = Replica(described_topic["name"], entry["partition_index"], answer["broker"])
                        log = ReplicaLog(log_dir["log_dir"], entry["partition_size"], entry["is_future_key"])
                        found[replica] = (*found.get(replica, ()), log)
        return found

    def directories(self, brokers: Iterable[int], partition: Partition) -> dict[int, frozenset[str]]:
        """Return the log directories of brokers. `partition` is any one: all of them are not to be listed."""
        answers = self._log_dirs(brokers, [partition])
        return {answer["broker"]: frozenset([one["log_dir"] for one in answer["log_dirs"]]) for answer in answers}

    def _log_dirs(self, brokers: Iterable[int], partitions: Iterable[Partition]) -> Any:
        wanted: dict[str, list[int]] = {}
        for topic, number in partitions:
            wanted.setdefault(topic, []).append(number)
        asked = list(brokers)
        return self._ask("Asking for log sizes", lambda client: client.describe_log_dirs(wanted, asked))

    def move_log_dirs(self, log_dirs: Mapping[Replica, str]) -> frozenset[Replica]:
        """Start to move replicas to other log directories of their brokers.

        Returns those that are not there yet, as their broker has no replica of the partition; ControlError for others
        that are refused.
        """
        wanted = {TopicPartitionReplica(*replica): path for replica, path in log_dirs.items()}
        results = self._ask("Moving log directories", lambda client: client.alter_replica_log_dirs(wanted))
        missing = set()
        for key, error in results.items():
            replica = Replica(key.topic, key.partition, key.broker_id)
            if error is ReplicaNotAvailableError:
                missing.add(replica)
            elif error is not NoError:
                raise ControlError(f"Moving the log of {replica}", str(error().description))
        return frozenset(missing)


def _own(throttles: Iterable[ThrottleSetting]) -> dict[str, str]:
    """Return the settings that the resource has itself, empty lists too, by name."""
    return {throttle.setting: throttle.value for throttle in throttles if throttle.is_own}
