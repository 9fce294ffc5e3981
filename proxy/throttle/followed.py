# SPDX-License-Identifier: Apache-2.0
"""The throttle that Kafka's own configurations ask for, as a layer of this sidecar's throttle.

Tools set and remove these configurations around a move, and some remove them too early. So a list keeps its replicas of
each partition until that partition's move has ended, and a rate stays until no partition has been reassigned for
RATE_KEPT_SECONDS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from weir.proxy.layers import Entry, Layer, Path
from weir.quota.settings import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.quota.throttled_replicas import ThrottledReplicas

RATE_KEPT_SECONDS: Final = 5.0
LISTS_KEPT_SECONDS: Final = 60.0  # of topics that servers do not know: one that has just started may not yet
NO_RATE: Final = 2**63 - 1  # Kafka's default of a rate (Long.MAX_VALUE), which limits nothing
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
LISTS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)

Lists = Mapping[str, ThrottledReplicas]  # A topic's lists by their names; one that is not set is missing


class Move(NamedTuple):
    """A partition that is being reassigned, by broker ids. `replicas` are all of them, those being added included."""

    replicas: frozenset[int]
    adding: frozenset[int]


Moves = Mapping[str, Mapping[int, Move]]  # what is being reassigned, by topic and partition


@dataclass(slots=True)
class _Rate:
    """A rate of Kafka's (bytes/s), and since when it is missing there (clock seconds)."""

    value: int
    removed_at: float = math.inf


class FollowedThrottle:
    """Keeps what was read of Kafka's throttle, and puts `part` of its rates in force.

    At the same rate, Kafka's own throttle would now and then stop what this one has let through.
    """

    def __init__(self, part: float = 1.0) -> None:
        self._part = part
        self._rates: dict[str, _Rate] = {}
        self._lists: dict[str, Lists] = {}
        self.told: frozenset[bytes] = frozenset()  # topics (UTF-8) whose lists were told
        self._absent: dict[str, float] = {}  # those that servers do not know, and since when (clock seconds)
        self._kept: dict[str, dict[tuple[str, int], frozenset[int]]] = {}  # by topic: brokers by list and partition
        self.moves: Moves = {}
        self._moved_at = -math.inf
        self._layer = Layer("kafka")
        self._is_made = True  # False: something has changed since the layer was made

    @property
    def topics(self) -> set[str]:
        """The topics that have a list, or had one when their move began."""
        return self._lists.keys() | self.moves.keys()

    @property
    def has_rates(self) -> bool:
        """Whether any rate is in force."""
        return bool(self._rates)

    def take_rates(self, rates: Mapping[str, int], now: float) -> bool:
        """Take the broker's rates (bytes/s) by name. Returns whether one was set or changed."""
        changed = False
        for name in RATES:
            value = rates.get(name, NO_RATE)
            known = self._rates.get(name)
            if value < NO_RATE:
                if known is None or known.value != value:
                    changed, self._is_made = True, False
                self._rates[name] = _Rate(value)
            elif known is not None and known.removed_at == math.inf:
                known.removed_at = now
        self._drop_rates(now)
        return changed

    def take_moves(self, moves: Moves, now: float) -> bool:
        """Take all partitions that are being reassigned. Returns whether there are others than before."""
        changed = moves != self.moves
        if moves:
            self._moved_at = now
        self._drop_rates(now)
        if changed:
            self.moves = moves
            self._is_made = False
            for topic in self._kept.keys() | moves.keys():
                self._keep(topic)
        return changed

    def take_lists(self, lists: Mapping[str, Lists | None]) -> None:
        """Take the lists of some topics. None is one whose lists are not told: what was told of it stays."""
        if (told_now := {topic.encode() for topic, told in lists.items() if told is not None}) - self.told:
            self.told |= told_now
        for topic, told in lists.items():
            if told is None:
                continue
            set_ = {name: replicas for name, replicas in told.items() if replicas}
            if set_ == self._lists.get(topic, {}):
                continue
            self._is_made = False
            if set_:
                self._lists[topic] = set_
                self._keep(topic)
            else:
                self._lists.pop(topic, None)

    def forget_topics(self, known: set[str], now: float) -> None:
        """Forget the lists of topics that were not among `known` for LISTS_KEPT_SECONDS: they were deleted."""
        absent = (self._lists.keys() | {topic.decode() for topic in self.told}) - known
        self._absent = {topic: self._absent.get(topic, now) for topic in absent}
        for topic in [topic for topic, since in self._absent.items() if now - since >= LISTS_KEPT_SECONDS]:
            self.told -= {topic.encode()}
            if self._lists.pop(topic, None) is not None:
                self._is_made = False

    def layer(self) -> Layer:
        """Return what is in force: the same object as long as nothing has changed."""
        if not self._is_made:
            self._is_made = True
            entries: dict[Path, Entry] = {
                (name,): Entry(math.floor(rate.value * self._part)) for name, rate in self._rates.items()
            }
            for topic in self.topics:
                for name in LISTS:
                    if replicas := self._in_force(topic, name):
                        entries["topics", topic, name] = Entry(replicas)
            if entries != self._layer.entries:
                self._layer = Layer("kafka", entries)
        return self._layer

    def _drop_rates(self, now: float) -> None:
        for name, rate in list(self._rates.items()):
            if max(rate.removed_at, self._moved_at) + RATE_KEPT_SECONDS <= now and rate.removed_at != math.inf:
                del self._rates[name]
                self._is_made = False

    def _keep(self, topic: str) -> None:
        """Remember the listed replicas of each partition of `topic` that is being reassigned."""
        moves = self.moves.get(topic, {})
        before = self._kept.pop(topic, {})
        kept = {key: brokers for key, brokers in before.items() if key[1] in moves}
        for name, replicas in self._lists.get(topic, {}).items():
            for partition, move in moves.items():
                listed = move.replicas
                if (by_broker := replicas.by_broker) is not None:
                    listed = frozenset(broker for broker, of in by_broker.items() if partition in of)
                if listed:
                    kept[name, partition] = kept.get((name, partition), frozenset()) | listed
        if kept:
            self._kept[topic] = kept

    def _in_force(self, topic: str, name: str) -> ThrottledReplicas | None:
        """Return the topic's list with the kept replicas of its moves."""
        told = self._lists.get(topic, {}).get(name)
        if topic not in self._kept or (told is not None and told.by_broker is None):
            return told
        kept: dict[int, set[int]] = {}
        for (of_list, partition), brokers in self._kept.get(topic, {}).items():
            for broker in brokers if of_list == name else ():
                kept.setdefault(broker, set()).add(partition)
        listed = {} if told is None or told.by_broker is None else told.by_broker
        by_broker = {
            broker: kept.get(broker, set()) | listed.get(broker, set()) for broker in kept.keys() | listed.keys()
        }
        return ThrottledReplicas({broker: frozenset(ids) for broker, ids in by_broker.items()}) if by_broker else None
