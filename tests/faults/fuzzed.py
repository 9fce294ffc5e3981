# SPDX-License-Identifier: Apache-2.0
"""Links between peers that send mutated frames: the real cores, throttle and limits, without a socket.

What a round does follows from its seed.
"""

from __future__ import annotations

import gc
import random
import struct
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.fakes.clock import MovedClock
from tests.fakes.links import FakeLink
from tests.fakes.relaying import AtOnce
from tests.limits.limiters import built_in
from tests.protocol.hostile import LISTS, PIECE, SAMPLES, Sample, large_fetch, mutated
from weir.limits.rules import Rule
from weir.protocol.errors import ProtocolError
from weir.protocol.header import FETCH
from weir.protocol.request_stream import RequestStream
from weir.proxy.limits.gate import LinkGate
from weir.proxy.limits.stage import LimitStage
from weir.proxy.log import EventLog
from weir.proxy.relay.buffers import LARGE_BUFFER_SIZE
from weir.proxy.relay.connection import Connection
from weir.proxy.relay.fetches import ConnectionEnds, ReplicaFetches
from weir.proxy.relay.open_link import Sender
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MOST_SECONDS: Final = 0.15
"""CPU time of one step on a calm machine. Reading 256 KB that are made to cost most takes a third of it."""

_LOOPS: Final = 100_000
_CALM_SECONDS: Final = 0.003  # what `_loop_seconds` returns on a calm machine

MOST_COLLECTED: Final = 2**20

_LIMITED: Final = (Rule("*", (built_in("RecordRateLimiter", 1),)),)
_THROTTLED: Final = ThrottleSettings(rate=100, replicas={"t0": ALL_REPLICAS, "t1": ALL_REPLICAS})
SIDES: Final[tuple[SideName, ...]] = ("leader", "follower")
_EXCHANGES: Final = 6
_ASKED_AGAIN: Final = 40
_LARGE_PART: Final = 0.01  # of requests
_OWN_PART, _PLAIN_PART, _LIMITED_PART, _CHANGED_PART, _MATCHED_PART = 0.7, 0.3, 0.6, 0.4, 0.9
_REQUESTS: Final = tuple(sample for sample in SAMPLES if sample.is_request)
_LARGE: Final = tuple(
    Sample(what, FETCH, version, True, large_fetch(version, what, 10_000))
    for what in LISTS
    for version in (3, 7, 12, 18)
)
_ANSWERS: Final = tuple(sample for sample in SAMPLES if not sample.is_request)
_SIZES: Final = (1, 7, 100, PIECE)  # of pieces
_CORRELATION: Final = struct.Struct(">i")


class Slow(Exception):
    """A step took too long."""


class Fuzzed:
    """A sidecar's sides, and one link after the other between peers that break the rules."""

    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        """How links ended, by the kind of the error; `passed` where there was none."""
        self.seen = Counter[str]()
        """What happened on the way."""

    def run(self, seed: int) -> None:
        """Have one link between two peers. A step that takes too long has to do so twice.

        The garbage collector waits meanwhile: it would look at all that the tests of one process keep.
        """
        gc.disable()
        try:
            self._run(seed)
        except Slow:
            self._run(seed)
        finally:
            gc.enable()

    def _run(self, seed: int) -> None:
        draw, clock, log = random.Random(seed), MovedClock(), EventLog("tests.fuzzed")
        name = draw.choice(SIDES)
        throttle = Throttle(name, 1, clock, _THROTTLED)
        side = Side(throttle, RelayStats(name), log, clock=clock, turns=AtOnce())
        stage = LimitStage(clock, log)
        stage.configure(_LIMITED)
        link = _Link(clock, draw, side, stage)
        try:
            link.talk()
            self.outcomes["passed"] += 1
        except ProtocolError as error:
            self.outcomes[error.kind] += 1
        except ConnectionEnds:
            self.outcomes["closed"] += 1
        finally:
            link.close()
        assert not side.stats.throttle_errors, "the throttle failed"
        self.seen["held by the throttle"] += side.stats.fetches_held
        self.seen["held for a limit"] += stage.holds_cut.total()
        self.seen["not counted"] += stage.not_counted.total()


class _Link:
    """One connection's core, and both of its peers. A plain one decodes and limits nothing."""

    def __init__(self, clock: MovedClock, draw: random.Random, side: Side, stage: LimitStage) -> None:
        self._clock, self._draw = clock, draw
        self._is_plain = is_plain = draw.random() < _PLAIN_PART
        fetches = ReplicaFetches(side, 5, host="10.0.0.1")
        decodes = (lambda replica_id, version: False) if is_plain else fetches.decodes
        self.core = Connection(fetches, RequestStream(MOST_COLLECTED, decodes))
        if not is_plain and draw.random() < _LIMITED_PART:
            self.core.gate = LinkGate(stage, side, FakeLink())
            self.core.requests.may_hold = self.core.gate.may_hold
        self._came = {"client": b"", "upstream": b""}
        self._went = {"client": b"", "upstream": b""}

    def talk(self) -> None:
        """A few requests, and answers to them."""
        draw, asked = self._draw, list[Sample]()
        own = draw.choice(_REQUESTS)  # what this client mostly sends
        for _ in range(draw.randint(1, _EXCHANGES)):
            others = _LARGE if draw.random() < _LARGE_PART else _REQUESTS
            some = [own if draw.random() < _OWN_PART else draw.choice(others) for _ in range(draw.randint(1, 3))]
            asked += some
            self._feed("client", b"".join(map(self._changed, some)))
            self._answer(asked)

    def close(self) -> None:
        """End the link, and check what went over it."""
        self._take()
        if self._is_plain:
            for sender, came in self._came.items():
                assert came.startswith(self._went[sender]), "bytes that pass were changed"
        self.core.phase = "closed"
        self.core.close()
        self.core.free()

    def _changed(self, sample: Sample) -> bytes:
        return mutated(self._draw, sample.data) if self._draw.random() < _CHANGED_PART else sample.data

    def _answer(self, asked: Sequence[Sample]) -> None:
        for _ in range(self._draw.randint(1, _EXCHANGES)):
            pending = self.core.responses.pending
            if not pending:
                return
            kinds = {(one.api_key, one.version) for one in asked}
            fitting = [one for one in _ANSWERS if (one.api_key, one.version) in kinds] or _ANSWERS
            data = self._changed(self._draw.choice(fitting))
            if self._draw.random() < _MATCHED_PART:
                data = data[:4] + _CORRELATION.pack(pending[0].correlation_id) + data[8:]
            self._feed("upstream", data)

    def _feed(self, sender: Sender, data: bytes) -> None:
        """Have bytes come in pieces of any size, as long as the link takes them."""
        draw, core = self._draw, self.core
        while data:
            size = draw.choice(_SIZES) if len(data) < PIECE else LARGE_BUFFER_SIZE
            piece, data = memoryview(bytearray(data[:size])), data[size:]
            while piece:
                if not core.takes(sender) and not self._worked(sender):
                    return
                began = time.thread_time()
                taken = len(piece)
                try:
                    if not core.passes(sender, piece):
                        taken = core.receive(sender, piece)
                finally:
                    self._came[sender] += piece[:taken]
                self._judge(began)
                self._take()
                piece = piece[taken:]
                assert core.requests.collected <= MOST_COLLECTED + LARGE_BUFFER_SIZE, (
                    "more of a request is kept than may be"
                )

    def _worked(self, sender: Sender) -> bool:
        """Do what there is to do, and let time pass. Returns whether bytes of a peer can be taken then."""
        core = self.core
        for _ in range(_ASKED_AGAIN):
            if core.hold is not None:
                self._clock.move(self._draw.choice((0.001, 0.1, 2.0)))
            elif not core.is_working:
                break
            began = time.thread_time()
            core.go_on()
            self._judge(began)
            self._take()
        return core.takes(sender)

    def _take(self) -> None:
        """Take out what is sent, before the buffer that it is in is used again."""
        core = self.core
        self._went["client"] += b"".join(core.to_upstream)
        self._went["upstream"] += b"".join(core.to_client)
        core.to_upstream.clear()
        core.to_client.clear()

    def _judge(self, began: float) -> None:
        seconds = time.thread_time() - began
        if seconds > MOST_SECONDS and seconds > MOST_SECONDS * max(1.0, _loop_seconds() / _CALM_SECONDS):
            raise Slow(f"a step took {1000 * seconds:.0f} ms")


def _loop_seconds() -> float:
    """Return the CPU time of a fixed piece of work: a busy machine makes all of it slower."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        hash("")
    return time.thread_time() - began
