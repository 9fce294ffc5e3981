# SPDX-License-Identifier: Apache-2.0
"""What only a lab does to its cluster: topics come and go, moves are waited for, and Kafka's own throttle is set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from weir.control.cluster_admin import Partition
from weir.control.errors import ControlError
from weir.control.move_admin import MoveAdmin
from weir.quota.settings import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS

_PREFERRED = 0  # ElectLeadersRequest.json: ElectionType


class LabAdmin(MoveAdmin):
    """The admin client of a lab's cluster. Every method blocks, and raises ControlError."""

    def create_topic(
        self, topic: str, assignment: Mapping[int, Sequence[int]], configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic whose replicas are where `assignment` (partition -> broker ids, leader first) says."""
        wanted = {
            "assignments": {p: list(replicas) for p, replicas in assignment.items()},
            "configs": dict(configs or {}),
        }
        self._ask(
            f"Creating topic {topic}",
            lambda client: client.create_topics({topic: wanted}, wait_for_metadata=True),
            done=TopicAlreadyExistsError,
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self._ask(
            f"Deleting topic {topic}",
            lambda client: client.delete_topics([topic]),
            done=UnknownTopicOrPartitionError,
        )

    def reassign(self, moves: Mapping[Partition, Sequence[int] | None]) -> None:
        """Start to move partitions to new replica lists; None in place of a list cancels the partition's move."""
        for partition, reason in self.try_to_reassign(moves).items():
            raise ControlError(f"Moving {partition}", reason)

    def elect_preferred_leaders(self, partitions: Iterable[Partition]) -> None:
        """Make the first replica of each partition its leader (KIP-460), where it is not."""
        wanted: dict[str, list[int]] = {}
        for topic, partition in partitions:
            wanted.setdefault(topic, []).append(partition)
        self._ask("Electing the preferred leaders", lambda client: client.elect_leaders(_PREFERRED, wanted))

    def wait_for_reassignments(self, seconds: float, poll_seconds: float = 0.2) -> float:
        """Wait until no move is under way. Returns the seconds that it took; ControlError after `seconds`."""
        start = self.clock()
        while moves := self.reassignments():
            if self.clock() - start > seconds:
                left = ", ".join(f"{move.topic}-{move.partition}" for move in sorted(moves)[:5])
                raise ControlError("Waiting for moves", f"{len(moves)} still under way after {seconds:g} s ({left})")
            self.sleep(poll_seconds)
        return self.clock() - start

    def configs(self, brokers: Iterable[int] = (), topics: Iterable[str] = ()) -> dict[str, dict[str, str]]:
        """Return every config of brokers and topics, defaults included, by `broker 1` and `topic orders`."""
        resources = [ConfigResource(ConfigResourceType.BROKER, str(broker)) for broker in brokers]
        resources += [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
        return {
            label: {key: str(entry["value"]) for key, entry in entries.items()}
            for label, entries in self._described(resources).items()
        }

    def set_native_throttle(
        self, rates: Mapping[int, Mapping[str, int]], replicas: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Set Kafka's own throttle: `rates` by broker (bytes/s by name), `replicas` by topic (lists by name)."""
        self._alter(rates, replicas, lambda client: client.alter_configs)

    def clear_native_throttle(self, brokers: Iterable[int], topics: Iterable[str]) -> None:
        """Remove Kafka's own throttle from brokers and topics."""
        rates = {broker: dict.fromkeys((LEADER_RATE, FOLLOWER_RATE)) for broker in brokers}
        lists = {topic: dict.fromkeys((LEADER_REPLICAS, FOLLOWER_REPLICAS)) for topic in topics}
        self._alter(rates, lists, lambda client: client.reset_configs)

    def _alter(
        self,
        brokers: Mapping[int, Mapping[str, object]],
        topics: Mapping[str, Mapping[str, object]],
        call_of: Callable[[KafkaAdminClient], Callable[..., Any]],
    ) -> None:
        resources = [
            ConfigResource(ConfigResourceType.BROKER, str(broker), _texts(set_)) for broker, set_ in brokers.items()
        ]
        resources += [ConfigResource(ConfigResourceType.TOPIC, topic, _texts(set_)) for topic, set_ in topics.items()]
        action = "Changing Kafka's own throttle"
        # A broker's rates are not among its configs until they are first set, so the client must not look them up.
        results = self._ask(action, lambda client: call_of(client)(resources, raise_on_unknown=False, incremental=True))
        for kind, by_name in results.items():
            for name, said in by_name.items():
                if said != "OK":
                    raise ControlError(f"{action} of {kind} {name}", str(said))


def _texts(configs: Mapping[str, object]) -> dict[str, str | None]:
    return {key: None if value is None else str(value) for key, value in configs.items()}
