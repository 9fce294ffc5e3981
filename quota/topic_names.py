# SPDX-License-Identifier: Apache-2.0
"""Names of topics by topic id. From v13 on a Fetch has ids only, but throttles name topics."""

from __future__ import annotations

import math
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from weir.protocol.metadata import NO_ID
from weir.quota.figures import MOST_TOPICS

CLUSTER_METADATA_ID: Final = bytes(15) + b"\x01"
"""The id of `__cluster_metadata`, the same in every cluster (Uuid.METADATA_TOPIC_ID)."""

METADATA_LOG: Final = (b"__cluster_metadata", CLUSTER_METADATA_ID)  # its topic's keys: the name, from v13 on the id
FIRST_RETRY_SECONDS = 0.25  # a broker hears of a new topic later than the topic's leader
MAX_RETRY_SECONDS = 60.0
FORGET_SECONDS = 600.0  # an id without a name that nobody looked up for this long is no longer asked for


def printed_id(topic_id: bytes) -> str:
    """A topic id as Kafka's tools print it (Uuid.toString): base64 with neither '+' nor '/', without padding."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


@dataclass(slots=True)
class _Unnamed:
    looked_up_at: float
    ask_at: float
    retry_seconds: float = FIRST_RETRY_SECONDS


class TopicNames:
    """Names of topics by id (16 bytes), from the cluster's metadata; both sides share one.

    At most `max_ids` ids are kept with a name, and as many without; those not looked up for longest are dropped.
    """

    def __init__(self, clock: Callable[[], float], max_ids: int = MOST_TOPICS) -> None:
        self.generation = 0  # grows with each change, so that links look again at ids that had no name
        self.on_miss: Callable[[], None] | None = None  # called when an id is first wanted; must not call back
        self._clock = clock
        self._max_ids = max_ids
        self._names: OrderedDict[bytes, bytes] = OrderedDict()
        self._unnamed: OrderedDict[bytes, _Unnamed] = OrderedDict()

    @property
    def unknown_count(self) -> int:
        """How many ids were looked up and have no name so far."""
        return len(self._unnamed)

    def name_of(self, topic_id: bytes) -> bytes | None:
        """Return the topic's name (UTF-8). None where it is not known yet; the id is then wanted."""
        name = self._names.get(topic_id)
        if name is not None:
            self._names.move_to_end(topic_id)
            return name
        if topic_id in (NO_ID, CLUSTER_METADATA_ID):
            return None
        now = self._clock()
        unnamed = self._unnamed.get(topic_id)
        if unnamed is not None:
            unnamed.looked_up_at = now
            self._unnamed.move_to_end(topic_id)
            return None
        self._unnamed[topic_id] = _Unnamed(looked_up_at=now, ask_at=now)
        if len(self._unnamed) > self._max_ids:
            self._unnamed.popitem(last=False)
        if self.on_miss is not None:
            self.on_miss()
        return None

    def learn(self, names: Mapping[bytes, bytes]) -> None:
        """Take names (UTF-8) by id from an answer."""
        changed = False
        for topic_id, name in names.items():
            if topic_id in (NO_ID, CLUSTER_METADATA_ID):
                continue
            changed |= self._names.get(topic_id) != name
            self._names[topic_id] = name
            self._names.move_to_end(topic_id)
            self._unnamed.pop(topic_id, None)
        while len(self._names) > self._max_ids:
            self._names.popitem(last=False)
        if changed:
            self.generation += 1

    def unknown(self, topic_ids: Iterable[bytes]) -> None:
        """Note that the cluster does not know these ids. Each is wanted again after a while, as metadata lags."""
        now = self._clock()
        for topic_id in topic_ids:
            unnamed = self._unnamed.get(topic_id)
            if unnamed is not None:
                unnamed.ask_at = now + unnamed.retry_seconds
                unnamed.retry_seconds = min(2 * unnamed.retry_seconds, MAX_RETRY_SECONDS)

    def next_wanted_at(self) -> float:
        """Return when the next id is to be asked for (clock seconds); inf while every id has its name."""
        return min((unnamed.ask_at for unnamed in self._unnamed.values()), default=math.inf)

    def wanted(self) -> list[bytes]:
        """Return the ids to ask for now."""
        now = self._clock()
        while self._unnamed:
            longest, unnamed = next(iter(self._unnamed.items()))
            if now - unnamed.looked_up_at < FORGET_SECONDS:
                break
            del self._unnamed[longest]
        return [topic_id for topic_id, unnamed in self._unnamed.items() if unnamed.ask_at <= now]
