"""Which ids are those of brokers: whoever makes up ids gets no metric series for them.

A replica fetch says only who its sender claims to be. The cluster's metadata tells who has replicas of a topic, so an
id is looked for there, beside a topic that it fetches. Until there is an answer it counts as a broker's: a new broker
is seen at once, and a cluster that cannot be asked hides nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

MOST_IDS: Final = 1_000
"""Brokers that are told apart on one side, and ids of which it is remembered that they are none."""

NO_BROKER: Final = -1
"""What is counted together of peers that are no brokers, or too many."""


class BrokerIds:
    """The ids that fetch through one side; `refused` counts those unknown to the cluster, or too many."""

    def __init__(self, most: int = MOST_IDS) -> None:
        self.refused = 0
        self._most = most
        self._known: set[int] = set()
        self._unsure: dict[int, bytes] = {}  # with a topic of each that the cluster can be asked for; b"" is none yet
        self._refused: OrderedDict[int, bytes] = OrderedDict()  # the same

    def admits(self, broker_id: int, topic: bytes) -> bool:
        """Whether an id counts as a broker's. `topic` is the name of one that it fetches, b"" while it has none."""
        if broker_id in self._known:
            return True
        if broker_id in self._refused:
            self._refused[broker_id] = topic or self._refused[broker_id]
            return False
        if broker_id not in self._unsure and len(self._known) + len(self._unsure) >= self._most:
            self.refuse(broker_id, topic)
            return False
        self._unsure[broker_id] = topic or self._unsure.get(broker_id, b"")
        return True

    def is_refused(self, broker_id: int) -> bool:
        """Whether an id is no broker's, as far as is known."""
        return broker_id in self._refused

    def is_unsure(self, broker_id: int) -> bool:
        """Whether the cluster is to be asked for an id that counts as a broker's meanwhile."""
        return broker_id in self._unsure

    def unsure(self) -> list[tuple[int, bytes]]:
        """All ids that `is_unsure`, each with a topic."""
        return list(self._unsure.items())

    def topics(self) -> set[bytes]:
        """Names of the topics to ask the cluster for, to know more.

        Of those that were refused only what they asked for since: perhaps the cluster did not know it yet.
        """
        topics = {*self._unsure.values(), *self._refused.values()} - {b""}
        self._refused = OrderedDict.fromkeys(self._refused, b"")
        return topics

    def learn(self, broker_ids: Iterable[int]) -> bool:
        """Take ids that the cluster knows; returns whether one of them was refused before."""
        new = set(broker_ids) - self._known
        self._known |= new
        found = False
        for broker_id in new:
            self._unsure.pop(broker_id, None)
            found |= self._refused.pop(broker_id, None) is not None
        return found

    def refuse(self, broker_id: int, topic: bytes) -> None:
        """It fetches a topic of which, as the cluster says, no such broker has a replica."""
        self.refused += 1
        self._unsure.pop(broker_id, None)
        self._refused[broker_id] = topic
        if len(self._refused) > self._most:
            self._refused.popitem(last=False)

    def forget(self, broker_id: int) -> None:
        """Nothing that an id fetches is kept any more."""
        self._unsure.pop(broker_id, None)
