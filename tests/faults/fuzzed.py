"""Links between peers that send mutated frames: the real cores, throttle and limits, without a socket.

What a round does follows from its seed.
"""

from __future__ import annotations

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
from tests.protocol.hostile import PIECE, SAMPLES, Sample, mutated
from weir.limits.rules import Rule
from weir.protocol.errors import ProtocolError
from weir.protocol.request_stream import RequestStream
from weir.proxy.limits.gate import LinkGate
from weir.proxy.limits.stage import LimitStage
from weir.proxy.log import EventLog
from weir.proxy.relay.connection import Connection
from weir.proxy.relay.fetches import ConnectionEnds, ReplicaFetches
from weir.proxy.relay.open_link import Sender
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MOST_SECONDS: Final = 0.05
"""CPU time of one step. Links have 2 ms at a time, of which a step may take some; the rest is for a busy machine."""

MOST_COLLECTED: Final = 2**20

_EXCHANGES: Final = 4
_ASKED_AGAIN: Final = 40
_REQUESTS: Final = tuple(sample for sample in SAMPLES if sample.is_request)
_ANSWERS: Final = tuple(sample for sample in SAMPLES if not sample.is_request)
_CORRELATION: Final = struct.Struct(">i")


class Slow(Exception):
    """A step took too long."""


class Fuzzed:
    """Sides of a sidecar, and what became of the links between peers that broke the rules."""

    def __init__(self) -> None:
        self.clock = MovedClock()
        self.outcomes = Counter[str]()
        """How links ended, by the kind of the error; `passed` where there was none."""
        self._log = EventLog("tests.fuzzed")
        self._stage = LimitStage(self.clock, self._log, {}.get)
        self._stage.configure((Rule("*", (built_in("RecordRateLimiter", 1000),)),))
        replicas = {"orders": ALL_REPLICAS, "t0": ALL_REPLICAS}
        settings = ThrottleSettings(rate=10_000, replicas=replicas)
        self.sides = [self._side(name, settings) for name in ("leader", "follower")]

    def _side(self, name: SideName, settings: ThrottleSettings) -> Side:
        side = Side(
            Throttle(name, 1, self.clock, settings), RelayStats(name), self._log, clock=self.clock, turns=AtOnce()
        )
        side.new_gate = lambda link: LinkGate(self._stage, side, link)
        return side

    def run(self, seed: int) -> None:
        """Have one link between two peers. A step that takes too long has to do so twice."""
        try:
            self._run(seed)
        except Slow:
            self._run(seed)

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        link = _Link(self.clock, draw, draw.choice(self.sides), is_plain=draw.random() < 0.3)
        try:
            link.talk()
            self.outcomes["passed"] += 1
        except ProtocolError as error:
            self.outcomes[error.kind] += 1
        except ConnectionEnds:
            self.outcomes["closed"] += 1
        finally:
            link.close()
        for side in self.sides:
            assert not side.stats.throttle_errors, f"seed {seed}: the throttle failed"


class _Link:
    """One connection's core, and both of its peers. A plain one decodes and limits nothing."""

    def __init__(self, clock: MovedClock, draw: random.Random, side: Side, *, is_plain: bool) -> None:
        self._clock, self._draw, self._is_plain = clock, draw, is_plain
        fetches = ReplicaFetches(side, 5, host="10.0.0.1")
        decodes = (lambda replica_id, version: False) if is_plain else fetches.decodes
        self.core = Connection(fetches, RequestStream(MOST_COLLECTED, decodes))
        if side.new_gate is not None and not is_plain and draw.random() < 0.7:
            self.core.gate = side.new_gate(FakeLink())
            self.core.requests.may_hold = self.core.gate.may_hold
        self._came = {"client": b"", "upstream": b""}
        self._went = {"client": b"", "upstream": b""}

    def talk(self) -> None:
        """A few requests, and answers to them."""
        draw, asked = self._draw, list[Sample]()
        for _ in range(draw.randint(1, _EXCHANGES)):
            some = draw.choices(_REQUESTS, k=draw.randint(1, 3))
            asked += some
            self._feed("client", b"".join(map(self._changed, some)))
            self._answer(asked)

    def close(self) -> None:
        """End the link, and check what went over it."""
        for sender in self._came:
            self._take(sender)
        if self._is_plain:
            for sender, came in self._came.items():
                assert came.startswith(self._went[sender]), "bytes that pass were changed"
        self.core.phase = "closed"
        self.core.close()
        self.core.free()

    def _changed(self, sample: Sample) -> bytes:
        return mutated(self._draw, sample.data) if self._draw.random() < 0.6 else sample.data

    def _answer(self, asked: Sequence[Sample]) -> None:
        for _ in range(self._draw.randint(1, _EXCHANGES)):
            pending = self.core.responses.pending
            if not pending:
                return
            kinds = {(one.api_key, one.version) for one in asked}
            fitting = [one for one in _ANSWERS if (one.api_key, one.version) in kinds] or _ANSWERS
            data = self._changed(self._draw.choice(fitting))
            if self._draw.random() < 0.9:
                data = data[:4] + _CORRELATION.pack(pending[0].correlation_id) + data[8:]
            self._feed("upstream", data)

    def _feed(self, sender: Sender, data: bytes) -> None:
        """Have bytes come in pieces of any size, as long as the link takes them."""
        draw, core = self._draw, self.core
        while data:
            size = min(PIECE, draw.choice((1, 7, 100, PIECE)))
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
                self._take(sender)
                piece = piece[taken:]
                assert core.requests.collected <= MOST_COLLECTED + PIECE, "more of a request is kept than may be"

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
            self._take(sender)
        return core.takes(sender)

    def _take(self, sender: Sender) -> None:
        """Take out what is sent, before the buffer that it is in is used again."""
        core = self.core
        self._went["client"] += b"".join(core.to_upstream)
        self._went["upstream"] += b"".join(core.to_client)
        core.to_upstream.clear()
        core.to_client.clear()

    def _judge(self, began: float) -> None:
        if (seconds := time.thread_time() - began) > MOST_SECONDS:
            raise Slow(f"a step took {1000 * seconds:.0f} ms")
