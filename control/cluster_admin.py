# SPDX-License-Identifier: Apache-2.0
"""Reads a cluster's topics, moves and configurations, and starts moves, with kafka-python's admin client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    BrokerResponseError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    NoReassignmentInProgressError,
    NotControllerError,
    UnknownBrokerIdError,
    for_code,
)
from kafka.protocol.admin import AlterPartitionReassignmentsRequest

from weir.control.authentication import REFUSALS, client_that_ends_when_refused
from weir.control.errors import ControlError
from weir.control.reachable import why_unreachable
from weir.planning.assignment import Brokers
from weir.planning.assignment import Partition as Partition
from weir.planning.assignment import Reassignment as Reassignment
from weir.planning.move_throttle import DISK_RATE as DISK_RATE
from weir.planning.move_throttle import LISTS, RATES

# Kafka's defaults, which DescribeConfigs returns where nothing is set: Long.MAX_VALUE for rates, an empty list for
# replicas.
_UNSET = {"", "[]", "None", str(2**63 - 1)}

Missing = Literal["never", "gone", "hidden"]
"""Topics whose settings may be missing in an answer: those that are `gone`, or that are `hidden` from the user, too."""

# Beside each kind's settings one that is always there, so that an answer without a throttle can be told from none.
_ASKED_OF: Mapping[str, tuple[tuple[str, ...], str]] = {
    "broker": (RATES, "num.io.threads"),
    "topic": (LISTS, "retention.ms"),
}

_RETRY_SECONDS = 0.2
# What a broker that restarts, or a controller that changes, makes of a request. Every request here may be repeated.
_PASSING = (KafkaConnectionError, NodeNotReadyError, NotControllerError)
# kafka-python raises this, and no KafkaError, while the cluster has no controller.
_NO_CONTROLLER = "Failed to find active controller id"

_UNKNOWN_TOPIC = 3


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the cluster's metadata says of a partition; `leader` is -1 where there is none."""

    leader: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


class ThrottleSetting(NamedTuple):
    """One setting of Kafka's own throttle, where it is set: a broker's rate (bytes/s), or a topic's list."""

    kind: Literal["broker", "topic"]
    name: str
    setting: str
    value: str
    source: str
    """Where the value comes from, by Kafka's ConfigSource, such as DYNAMIC_BROKER_CONFIG."""

    @property
    def is_own(self) -> bool:
        """Whether it is the resource's own dynamic setting, not the cluster's default or the broker's file."""
        return self.source in ("DYNAMIC_BROKER_CONFIG", "DYNAMIC_TOPIC_CONFIG")


class _Client(KafkaAdminClient):  # type: ignore[misc] # kafka-python has no types
    """kafka-python's client, which also gives what a broker says of a partition that it refuses to move."""

    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int | None = None
    ) -> dict[TopicPartition, BrokerResponseError | None]:
        """Start or cancel moves; returns the error of each partition, with the broker's message where it has one."""
        topics = self._process_alter_partition_reassignments_input(reassignments)
        request = AlterPartitionReassignmentsRequest(timeout_ms=self._validate_timeout(timeout_ms), topics=topics)
        response = self._manager.run(
            self._send_request_to_controller, request, lambda answer: [for_code(answer.error_code)]
        )
        found = {}
        for topic in response.responses:
            for one in topic.partitions:
                error = for_code(one.error_code)
                said = one.error_message or error.description
                found[TopicPartition(topic.name, one.partition_index)] = error(said) if one.error_code else None
        return found


class ClusterAdmin:
    """Connections to a cluster's controllers and brokers. Every method blocks, and raises ControlError.

    `client_options` are kafka-python's, such as those of access.client_properties.
    `probes_first`: where no server can be used, ControlError says why within seconds, and nothing waits for one.
    `clock` and `sleep` (seconds): whoever waits for something of the cluster waits by them.
    `patience_seconds`: how long a request is repeated while connections fail or the controller changes. It may be
    changed at any time, and is `timeout_seconds` at first.
    """

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        timeout_seconds: float = 30,
        client_options: Mapping[str, object] | None = None,
        probes_first: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bootstrap_servers = list(bootstrap_servers)
        self._timeout_ms = int(timeout_seconds * 1000)
        self._client_options = dict(client_options or {})
        self.clock = clock
        self.sleep = sleep
        self.patience_seconds = timeout_seconds
        speaks_tls = str(self._client_options.get("security_protocol", "")).endswith("SSL")
        if probes_first and (why := why_unreachable(self._bootstrap_servers, speaks_tls=speaks_tls)) is not None:
            raise ControlError("Connecting", why)
        self._client = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def brokers(self) -> list[int]:
        """Return the ids of the brokers that are registered and not fenced."""
        return sorted(self.racks())

    def racks(self) -> dict[int, str | None]:
        """Return the rack of each broker that is registered and not fenced; None where it has none."""
        brokers = self._cluster("the brokers")["brokers"]
        return {int(broker["broker_id"]): broker.get("rack") for broker in brokers if not broker.get("is_fenced")}

    def cluster_id(self) -> str:
        """Return the cluster's id; empty where it has none (before Kafka 0.10.1)."""
        return str(self._cluster("the cluster")["cluster_id"] or "")

    def broker_hosts(self) -> dict[int, str]:
        """Return where each registered broker listens for clients, by id. Those that are fenced are among them."""
        return {int(broker["broker_id"]): str(broker["host"]) for broker in self._cluster("the brokers")["brokers"]}

    def broker_listeners(self) -> dict[int, tuple[str, int]]:
        """Return the host and port that each registered broker advertises on the listener that was asked, by id."""
        brokers = self._cluster("the brokers")["brokers"]
        return {int(broker["broker_id"]): (str(broker["host"]), int(broker["port"])) for broker in brokers}

    def controller(self) -> int:
        """Return the id of the broker that is the controller; -1 where there is none.

        In KRaft mode it is any broker.
        """
        return int(self._cluster("the controller")["controller_id"])

    def partitions(self, topics: Iterable[str] | None = None) -> dict[Partition, PartitionState]:
        """Return the state of every partition of `topics`; None means all topics. All of them have to exist."""
        return self._partitions(topics, lambda topic: _check(f"Describing topic {topic['name']}", topic["error_code"]))

    def existing_partitions(self, topics: Iterable[str]) -> dict[Partition, PartitionState]:
        """Return the state of every partition of `topics`. Topics that do not exist are left out."""

        def check(topic: Mapping[str, Any]) -> None:
            if topic["error_code"] != _UNKNOWN_TOPIC:
                _check(f"Describing topic {topic['name']}", topic["error_code"])

        return self._partitions(topics, check)

    def _cluster(self, what: str) -> Any:
        return self._ask(f"Asking for {what}", lambda client: client.describe_cluster())

    def _partitions(
        self, topics: Iterable[str] | None, check: Callable[[Mapping[str, Any]], None]
    ) -> dict[Partition, PartitionState]:
        names = None if topics is None else list(topics)
        described = self._ask("Asking for topics", lambda client: client.describe_topics(names))
        found = {}
        for topic in described:
            check(topic)
            for entry in topic["partitions"]:
                found[Partition(topic["name"], entry["partition_index"])] = PartitionState(
                    leader=entry["leader_id"],
                    replicas=tuple(entry["replica_nodes"]),
                    in_sync_replicas=tuple(entry["isr_nodes"]),
                )
        return found

    def try_to_reassign(self, moves: Mapping[Partition, Brokers | Sequence[int] | None]) -> dict[Partition, str]:
        """Start to move partitions to new replica lists; None in place of a list cancels the partition's move.

        Returns why, for each that the cluster refuses. To cancel a move that has ended is no failure.
        """
        wanted = {TopicPartition(*partition): replicas for partition, replicas in moves.items()}
        results = self._ask("Starting the move", lambda client: client.alter_partition_reassignments(wanted))
        return {
            Partition(partition.topic, partition.partition): str(error.args[0]).removesuffix(".")
            for partition, error in results.items()
            if error is not None and not isinstance(error, NoReassignmentInProgressError)
        }

    def reassignments(self) -> dict[Partition, Reassignment]:
        """Return the moves that are under way."""
        listed = self._ask("Listing moves", lambda client: client.list_partition_reassignments())
        return {
            Partition(partition.topic, partition.partition): Reassignment(
                tuple(move["replicas"]), tuple(move["adding_replicas"]), tuple(move["removing_replicas"])
            )
            for partition, move in listed.items()
        }

    def throttle_settings(self, brokers: Iterable[int], topics: Iterable[str]) -> list[ThrottleSetting]:
        """Return the settings of Kafka's own throttle that are set for these brokers and topics, and where.

        Little is asked for, so it may be done for all topics of a large cluster.
        """
        found = [*self._throttles_of("broker", brokers).values(), *self._throttles_of("topic", topics).values()]
        return [throttle for of_one in found for throttle in of_one if throttle.value not in _UNSET]

    def _connect(self) -> _Client:
        with _refused(f"Connecting to {', '.join(self._bootstrap_servers)}"):
            return _Client(
                **{
                    "client_id": "weir",
                    "request_timeout_ms": self._timeout_ms,
                    "reconnect_backoff_max_ms": 1000,
                    **self._client_options,
                    "bootstrap_servers": self._bootstrap_servers,
                    "bootstrap_timeout_ms": self._timeout_ms,
                    "kafka_client": client_that_ends_when_refused,
                }
            )

    def _throttles_of(
        self, kind: Literal["broker", "topic"], names: Iterable[object], missing: Missing = "never"
    ) -> dict[str, list[ThrottleSetting]]:
        """Return all settings of Kafka's own throttle that have a value, be it a default, by broker or topic."""
        settings, always_there = _ASKED_OF[kind]
        resources = [
            ConfigResource(ConfigResourceType[kind.upper()], str(name), [*settings, always_there]) for name in names
        ]
        described = self._described(resources, missing)
        return {
            (name := label.partition(" ")[2]): [
                ThrottleSetting(kind, name, setting, str(entry["value"]), str(entry["config_source"]))
                for setting, entry in sorted(entries.items())
                if setting in settings and entry["value"] is not None
            ]
            for label, entries in described.items()
        }

    def _described(self, resources: Sequence[Any], missing: Missing = "never") -> dict[str, dict[str, Any]]:
        """Return the entries of each resource by its label, such as `broker 1`."""
        if not resources:
            return {}
        described = self._ask(
            "Describing configs", lambda client: client.describe_configs(resources, config_filter="all")
        )
        found = {
            f"{kind} {name}": entries
            for kind, by_name in described.items()
            for name, entries in by_name.items()
            if entries
        }
        # The client drops the error of a single resource, whose entries are then empty. That must not read as "unset".
        for resource in resources if missing != "hidden" else ():
            is_topic = resource.resource_type is ConfigResourceType.TOPIC
            label = f"{resource.resource_type.name.lower()} {resource.name}"
            may_be_gone = missing == "gone" and is_topic
            if label not in found and not (may_be_gone and not self.existing_partitions([resource.name])):
                why = "nothing came back: it does not exist, or you have no DescribeConfigs there"
                raise ControlError(f"Describing the configs of {label}", why)
        return found

    def _ask(self, action: str, ask: Callable[[KafkaAdminClient], Any], *, done: type[KafkaError] | None = None) -> Any:
        """Ask, again with a new client where it may help. ControlError names `action`.

        A client looks for brokers and the controller every 5 minutes only, so an old one may not find them.
        `done` is the error that a repeated request gets where the one before it was carried out.
        """
        begun = self.clock()
        is_known = True
        repeated = False
        with _refused(action):
            while True:
                try:
                    return _asked(self._client, ask)
                except UnknownBrokerIdError:
                    if not is_known:
                        raise
                    is_known = False
                except _PASSING:
                    if self.clock() - begun >= self.patience_seconds:
                        raise
                    self.sleep(_RETRY_SECONDS)
                except KafkaError as error:
                    if repeated and done is not None and isinstance(error, done):
                        return None
                    raise
                repeated = True
                new = self._connect()  # if it fails, the old client can still be used
                self._client.close()
                self._client = new


def _asked(client: KafkaAdminClient, ask: Callable[[KafkaAdminClient], Any]) -> Any:
    try:
        return ask(client)
    except RuntimeError as error:
        if _NO_CONTROLLER in str(error):
            raise NotControllerError("the cluster has no controller now") from error
        raise


def _check(action: str, error_code: int) -> None:
    if error_code:
        raise ControlError(action, f"error code {error_code}")


@contextmanager
def _refused(action: str) -> Iterator[None]:
    try:
        yield
    except IncompatibleBrokerVersion as error:
        reason = "the brokers are too old for it: moves need Kafka 2.4 or newer, changes of single settings 2.3"
        raise ControlError(action, reason) from error
    except REFUSALS as error:
        raise ControlError(action, str(error.args[0]) if error.args else type(error).__name__) from error
    except KafkaError as error:
        raise ControlError(action, str(error) or type(error).__name__) from error
