# SPDX-License-Identifier: Apache-2.0
"""Which replicas of one topic are throttled: the values of `leader.` and `follower.replication.throttled.replicas`.

The form is KIP-73's: `*`, or `[partition]:[broker],[partition]:[broker],...`. A blank value means none, as in Kafka's
ThrottledReplicaListValidator.java.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from weir.protocol.fetch_versions import MAX_INT32

_ENTRY = re.compile(r"([0-9]+):([0-9]+)")
# Java's String.trim, which Kafka applies: every character up to and including the space, and no other kind of blank.
_BLANKS = "".join(map(chr, range(0x21)))
_INT32_DIGITS = len(str(MAX_INT32))


class InvalidThrottledReplicas(ValueError):
    """A list of throttled replicas that Kafka would refuse: `entry` is the bad entry, `reason` says what is wrong."""

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(entry, reason)
        self.entry = entry
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.entry!r} in a list of throttled replicas {self.reason}."


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """The throttled replicas of one topic: `by_broker` holds partition ids by broker id; None stands for `*`."""

    by_broker: Mapping[int, frozenset[int]] | None

    @classmethod
    def parse(cls, text: str) -> ThrottledReplicas:
        """Read a list as Kafka's validator does. InvalidThrottledReplicas names the first entry that Kafka would
        refuse.

        Blanks around entries and empty entries are accepted, duplicates count once, and ids beyond a signed 32-bit
        integer are refused, as by Kafka's handler.
        """
        entries = [stripped for entry in text.split(",") if (stripped := entry.strip(_BLANKS))]
        if entries == ["*"]:
            return ALL_REPLICAS
        by_broker: dict[int, set[int]] = {}
        for entry in entries:
            partition, broker_id = _read_entry(entry)
            by_broker.setdefault(broker_id, set()).add(partition)
        return cls({broker_id: frozenset(partitions) for broker_id, partitions in by_broker.items()})

    def partitions_of(self, broker_id: int) -> frozenset[int] | None:
        """Return the partitions whose replica on this broker is throttled; None means all of them."""
        if self.by_broker is None:
            return None
        return self.by_broker.get(broker_id, NO_PARTITION)

    def __bool__(self) -> bool:
        return self.by_broker is None or bool(self.by_broker)

    def __hash__(self) -> int:
        return hash(self.by_broker if self.by_broker is None else frozenset(self.by_broker.items()))

    def __str__(self) -> str:
        """Write the list in Kafka's form, sorted by partition; `parse` reads it back to an equal value."""
        if self.by_broker is None:
            return "*"
        pairs = sorted((partition, broker) for broker, partitions in self.by_broker.items() for partition in partitions)
        return ",".join(f"{partition}:{broker}" for partition, broker in pairs)


ALL_REPLICAS = ThrottledReplicas(None)


def _read_entry(entry: str) -> tuple[int, int]:
    if entry == "*":
        raise InvalidThrottledReplicas(entry, "must stand alone: it already means every replica")
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise InvalidThrottledReplicas(entry, "is neither '*' nor two numbers, [partition]:[broker]")
    partition, broker_id = match.groups()
    if len(partition) < _INT32_DIGITS and len(broker_id) < _INT32_DIGITS:
        return int(partition), int(broker_id)
    # Compared by length first: int() has an error of its own for thousands of digits.
    ids = [digits.lstrip("0") or "0" for digits in match.groups()]
    if any(len(digits) > _INT32_DIGITS or int(digits) > MAX_INT32 for digits in ids):
        raise InvalidThrottledReplicas(entry, f"has an id greater than {MAX_INT32}")
    return int(ids[0]), int(ids[1])


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """The union of `parts` but for `excluded`, without a copy of them."""

    parts: tuple[Container[int], ...]
    excluded: Container[int] = ()

    def __contains__(self, partition: object) -> bool:
        return partition not in self.excluded and any([partition in part for part in self.parts])


EVERY_PARTITION: Final = range(MAX_INT32 + 1)  # what `*` throttles
NO_PARTITION: Final[frozenset[int]] = frozenset()
Partitions = frozenset[int] | range
"""Some partitions of a topic, or all."""

CLUSTER_METADATA_TOPIC = "__cluster_metadata"  # never throttled: that would hold back every broker
