# SPDX-License-Identifier: Apache-2.0
"""Tells broker ids from made-up ones, so that whoever makes ids up gets no metric series for them.

A replica fetch only says who its sender claims to be. The cluster's metadata says who has replicas of a topic, so each
id is looked up there, together with a topic that it fetches. Until the answer is there the id counts as a broker's: a
new broker is seen at once, and a cluster that does not answer hides nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

MOST_IDS: Final = 1_000
"""The most brokers that are told apart on one side; also the most ids that are remembered as no broker's."""

NO_BROKER: Final = -1
"""The id under which peers that are no brokers, or too many, are counted together."""

STRANGER: Final = -2
"""The id by which all clients take turns together that claim to be brokers, and are not known to be."""


class BrokerIds:
    """The ids that fetch through one side; `refused` counts ids that the cluster does not know or that are too many."""

    def __init__(self, most: int = MOST_IDS) -> None:
        self.refused = 0
        self._most = most
        self._known: set[int] = set()
        self._unsure: dict[int, bytes] = {}  # each with a topic to ask the cluster for; b"" while none is known
        self._refused: OrderedDict[int, bytes] = OrderedDict()  # the same, of ids that are no broker's

    def admits(self, broker_id: int, topic: bytes) -> bool:
        """Return whether an id counts as a broker's.

        `topic` is the name of one that it fetches, b"" while it has none.
        """
        if broker_id in self._known:
            return True
        if broker_id == STRANGER:
            return False
        if broker_id in self._refused:
            self._refused[broker_id] = topic or self._refused[broker_id]
            return False
        if broker_id not in self._unsure and len(self._known) + len(self._unsure) >= self._most:
            self.refuse(broker_id, topic)
            return False
        self._unsure[broker_id] = topic or self._unsure.get(broker_id, b"")
        return True

    def is_refused(self, broker_id: int) -> bool:
        """Whether the cluster has said that an id is no broker's."""
        return broker_id in self._refused or broker_id == STRANGER

    def is_unsure(self, broker_id: int) -> bool:
        """Whether an id counts as a broker's for now, as the cluster has not been asked about it."""
        return broker_id in self._unsure

    def unsure(self) -> list[tuple[int, bytes]]:
        """Return the ids that `is_unsure`, each with a topic."""
        return list(self._unsure.items())

    def topics(self) -> set[bytes]:
        """Return the names of the topics to ask the cluster for.

        A refused id has a topic here only where it fetched one since it was refused: perhaps the cluster did not know
        it yet.
        """
        topics = {*self._unsure.values(), *self._refused.values()} - {b""}
        self._refused = OrderedDict.fromkeys(self._refused, b"")
        return topics

    def learn(self, broker_ids: Iterable[int]) -> bool:
        """Take ids that the cluster knows. Returns whether one of them was refused before."""
        new = set(broker_ids) - self._known
        self._known |= new
        found = False
        for broker_id in new:
            self._unsure.pop(broker_id, None)
            found |= self._refused.pop(broker_id, None) is not None
        return found

    def refuse(self, broker_id: int, topic: bytes) -> None:
        """Note that no such broker has a replica of `topic`, which the id fetches."""
        self.refused += 1
        self._unsure.pop(broker_id, None)
        self._refused[broker_id] = topic
        if len(self._refused) > self._most:
            self._refused.popitem(last=False)

    def forget(self, broker_id: int) -> None:
        """Forget an id, of whose fetches nothing is kept any more."""
        self._unsure.pop(broker_id, None)
