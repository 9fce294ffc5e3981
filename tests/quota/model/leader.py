# SPDX-License-Identifier: Apache-2.0
"""A leader in the model's world: its answers come when there is enough, or the time is over."""

from __future__ import annotations

from typing import Protocol

from tests.fakes.kafka.leader import Fetch, Leader
from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.wire import Response
from tests.quota.model.world import World
from weir.protocol.fetch_request import FetchRequest


class Asker(Protocol):
    """Who is answered."""

    is_open: bool

    def answered(self, response: Response) -> None:
        """The leader sends this."""


class LeaderNode(Leader):
    """One broker that leads `logs`; it keeps at most `slots` sessions."""

    def __init__(self, world: World, broker_id: int, slots: int) -> None:
        super().__init__(slots=slots)
        self.world = world
        self.broker_id = broker_id
        self.deleted: dict[Key, Log] = {}  # answers may be on their way that have records of them
        self.latest = 0.0  # answers come up to so many seconds late
        self._answers = 0
        self._waiting: dict[Fetch, Asker] = {}

    def next_lateness(self, replica_id: int) -> float:
        """By how much the next answer to a follower is late, in seconds. A test may make it another one's."""
        self._answers += 1
        return self.latest * (self._answers * 7 % 13) / 13

    def append(self, log: Log, size: int) -> None:
        """A producer's batch: whoever waits for it is answered."""
        log.append(size, self.world.now)
        self._look_again(log.key)

    def fail(self, log: Log, error_code: int) -> None:
        """From now on `log` is answered so; 0 is no error."""
        log.error_code = error_code
        if error_code:
            self._look_again(log.key)

    def delete(self, key: Key) -> None:
        """The partition is here no more."""
        if (log := self.logs.pop(key, None)) is not None:
            self.deleted[key] = log
        self._look_again(key)

    def fetch(self, asker: Asker, request: FetchRequest) -> None:
        """Answer now, or when there is enough or the time is over."""
        fetch = Fetch(request, self.sessions)
        self.read(fetch, self.world.now)
        if self.waits(fetch):
            self._waiting[fetch] = asker
            self.world.after(request.max_wait_ms / 1000, self._complete, fetch)
        else:
            asker.answered(self.response(fetch))

    def _look_again(self, key: Key) -> None:
        for fetch in [one for one in self._waiting if key in one.wanted]:
            log = self.logs.get(key)
            if log is None or log.error_code or self.is_enough(fetch):
                self._complete(fetch)

    def _complete(self, fetch: Fetch) -> None:
        asker = self._waiting.pop(fetch, None)
        if asker is not None and asker.is_open:
            self.read(fetch, self.world.now)
            asker.answered(self.response(fetch))
