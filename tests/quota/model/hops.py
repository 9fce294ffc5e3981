# SPDX-License-Identifier: Apache-2.0
"""Sidecars, and followers' connections through them, as proxy/relay/fetches.py and proxy/relay/side.py make them."""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.take_out import passed, take_out
from tests.fakes.kafka.wire import Response, scan, scan_appended, seen_by_scanner
from tests.quota.model.describe import answer_line, decision_line, request_line
from tests.quota.model.promise import Covered, SideMeter, Term, Told, most_probes
from tests.quota.model.world import World
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import ResponseHead, ScannedTopic
from weir.quota.fetch.decisions import Answer, Forward, Hold
from weir.quota.fetch.link import ReplicaLink
from weir.quota.figures import LEAST_BYTES, LONGEST_WAIT_SECONDS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle

if TYPE_CHECKING:
    from tests.quota.model.chain import Chain

_WAKE_INTERVAL_SECONDS = 0.005
_SHORTEST_HOLD_SECONDS = 0.001
_LEAST_HELD_SECONDS = 1e-6
_MOST_PLANS_AT_ONCE = 200  # of one held fetch, at one moment


Covers = Callable[[int, int], Mapping[str, frozenset[Key]]]


def stays_empty(response: Response, head: ResponseHead) -> bool:
    """Whether an answer is legal without any partition, and not with some (KIP-219). As in the response scanner."""
    return not response.topics and head.throttle_time_ms > 0


class Sidecar:
    """One side of one sidecar: its throttle, and the connections that hold a fetch back."""

    def __init__(self, world: World, throttle: Throttle, meter: SideMeter, covers: Covers) -> None:
        """`covers` returns what each quota in force covers on a link of a follower (first) with another broker."""
        self.world = world
        self.throttle = throttle
        self.meter = meter
        self._covers = covers
        self._terms: dict[tuple[int, int], tuple[Term, ...]] = {}
        self.errors = 0  # that lying peers caused
        self.walks: Container[bytes] | None = None  # of which topics batches are seen; None: as the throttle says
        self.held: dict[Hop, None] = {}
        self.stopped_until = -math.inf
        self._wakes_at = -math.inf
        self._woken_at = -math.inf

    def configure(self, settings: ThrottleSettings, rates: Mapping[str, int | None]) -> None:
        """Put other settings in force, of which `rates` are those of the quotas that hold back."""
        self.meter.change(rates)
        self.throttle.configure(settings)
        self.covers_others()

    def covers_others(self) -> None:
        """Note that quotas cover other partitions from now on: what is held is planned again."""
        self._terms = {}
        self.wake_now()

    def terms(self, follower: int, leader: int) -> tuple[Term, ...]:
        """The quotas that hold back partitions of a link, each with these."""
        terms = self._terms.get((follower, leader))
        if terms is None:
            covered = self._covers(follower, follower if self.throttle.side == "leader" else leader)
            terms = self._terms[follower, leader] = tuple(
                Term(meter, covered[name])
                for name, meter in self.meter.meters.items()
                if meter.rate is not None and covered[name]
            )
        return terms

    def stop(self, seconds: float) -> None:
        """Its process is stopped for so long: whatever it should do waits."""
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)

    def wake_soon(self) -> None:
        """Budget flowed back: who is next in line is planned again, as by proxy/relay/side.py."""
        if self.held and self._wakes_at < self.world.now:
            self._wakes_at = max(self.world.now, self._woken_at + _WAKE_INTERVAL_SECONDS, self.stopped_until)
            self.world.after(self._wakes_at - self.world.now, self._wake_next)

    def wake_now(self) -> None:
        """Plan what is held again: all of it, longest held first."""
        if self.stopped_until > self.world.now:
            self.world.after(self.stopped_until - self.world.now, self.wake_now)
            return
        self._woken_at = self.world.now
        for hop in list(self.held):
            hop.replan()

    def _wake_next(self) -> None:
        self._wakes_at, self._woken_at = -math.inf, self.world.now
        first = self.throttle.next_in_line()
        held = {hop.link: hop for hop in self.held}
        for hop in held.values() if first is None else [held[one] for one in first if one in held]:
            hop.replan()
            if hop not in self.held:
                self.wake_soon()


class _Asked(NamedTuple):
    """A fetch that was forwarded, and when."""

    decision: Forward
    terms: tuple[Term, ...]
    is_probe: bool
    at: float


class Hop:
    """One connection in one sidecar."""

    def __init__(self, chain: Chain, number: int, sidecar: Sidecar) -> None:
        self.chain = chain
        self.sidecar = sidecar
        self.told = Told(self._caught_up)
        self.is_throttled = True
        self.reasons = 0  # for probes
        self._probes = 0  # that brought something
        self._opened_at = chain.world.now
        self._number = number
        self._link: ReplicaLink | None = None
        self._requests: deque[FetchRequest] = deque()  # one that is held, and those behind it
        self._is_held = False
        self._since = 0.0
        self._plan_number = 0
        self._planned_at = -math.inf
        self._plans_at_once = 0
        self._in_flight: deque[_Asked] = deque()
        self._begun = 0  # of these, whose answers have begun
        self._seen: deque[list[ScannedTopic]] = deque()  # of the answers that are on their way
        self._arriving: deque[tuple[Response, _Asked, list[Covered]]] = deque()
        self._rate_fell = False  # while bytes are held back

    @property
    def terms(self) -> tuple[Term, ...]:
        """The quotas that hold back partitions of this link now."""
        return self.sidecar.terms(self.chain.client.replica_id, self.chain.leader.broker_id)

    def _caught_up(self, key: Key) -> tuple[int, float]:
        leader = self.chain.leader
        log = leader.logs.get(key) or leader.deleted.get(key)
        return (0, -math.inf) if log is None else log.caught_up.get(self.chain.client.replica_id, (0, -math.inf))

    @property
    def link(self) -> ReplicaLink | None:
        """The connection's part of the throttle; None before its first fetch."""
        return self._link

    @property
    def in_flight(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._in_flight)

    def take(self, request: FetchRequest) -> None:
        """A fetch arrived."""
        if not self.is_throttled:
            self.chain.forward(self._number, request)
            return
        self._requests.append(request)
        if len(self._requests) == 1:
            self._since = self.chain.world.now
            self._decide()

    def replan(self) -> None:
        """Plan the fetch that is held again."""
        if self._is_held:
            self._decide()

    def answer_begins(self, response: Response) -> None:
        """The first byte of the oldest answer that is awaited came."""
        if not self.is_throttled:
            return
        asked = self._in_flight[self._begun]
        self._begun += 1
        meter = self.sidecar.meter
        sizes = meter.covered(asked.terms, self.told, response.topics, response.bases, is_probe=asked.is_probe)
        self._arriving.append((response, asked, sizes))
        if asked.is_probe and any(one.bounded for one in sizes):
            self._count_probe()
        if self._link is not None:
            self._link.answer_begins(response.size)

    def count(self, response: Response, begin: int, end: int) -> None:
        """Bytes `begin` to `end` of an answer arrive."""
        for one, asked, sizes in self._arriving:
            if one is response:
                for covered in sizes:
                    covered.meter.passed(covered, begin, end, asked.at, is_probe=asked.is_probe)

    def has_arrived(self) -> None:
        """The oldest answer has arrived whole."""
        if self._arriving:
            self._arriving.popleft()

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """What the relay's passage asks."""
        if self._link is None:
            return most
        size = self._link.let_pass(arrived, on_way, most, waited)
        if 0 < size <= LEAST_BYTES and waited >= LONGEST_WAIT_SECONDS:
            for term in self.terms:
                term.meter.waited(int(size))
        # What passed at a higher rate fills the window: who waits for room then does not wait for others' sake.
        fell = size < most and any(term.meter.has_fallen() for term in self.terms)
        if fell != self._rate_fell:
            self._rate_fell = fell
            self.chain.busy(1 if fell else -1)
        return size

    def take_out(self, response: Response) -> Response:
        """An answer comes; returns what passes of it."""
        if not self.is_throttled:
            return response
        seen = take_out(response.topics, self._in_flight[self._begun].decision)
        self._seen.append(seen)
        topics = passed(seen)
        size = sum(one.size for topic in topics for one in topic.records)
        bases = {(topic.name, one.partition) for topic in topics for one in topic.records}
        return Response(response.head, topics, {key: response.bases[key] for key in bases}, size)

    def settle(self, response: Response) -> Response:
        """An answer passed; returns what goes on to the follower."""
        if not self.is_throttled:
            return response
        decision = self._in_flight.popleft().decision
        self._begun = max(0, self._begun - 1)  # an answer of another sidecar's own came at once
        if self.chain.world.trace is not None:
            line = answer_line(response.topics)
            self.chain.world.say(
                f"{self.sidecar.meter.side}, link {self.chain.number}: answered {response.head}, {line}"
            )
        meter = self.sidecar.meter
        limit = self.sidecar.throttle.settings.response_max_bytes
        if limit is not None and response.size > max(limit, meter.allowed.batch):
            self.chain.world.violate("response limit", f"{meter.side}: {response.size:,} bytes, not {limit:,}")
        self.told.take(response.topics)
        assert self._link is not None
        try:
            is_last = self._number == len(self.chain.hops) - 1
            seen = self._seen.popleft() if is_last else response.topics
            self._link.settle(seen_by_scanner(seen, self.sidecar.walks or decision.expected.walk), response.head)
        except Exception as error:  # noqa: BLE001 - as the proxy does
            self._give_up(error)
        self.chain.later(0.0, self._number, self.replan)  # its next fetch may wait for this answer
        self.sidecar.wake_soon()
        head = response.head if decision.expected.head_patch is None else decision.expected.head_patch(response.head)
        if not decision.expected.appended_topics or head.error_code or stays_empty(response, head):
            return response.appended(head, [])
        version = decision.request.header.api_version
        return response.appended(head, scan_appended(version, *decision.expected[:2]))

    def close(self) -> None:
        """The connection is gone."""
        self._drop_held()
        if self._link is not None and self.is_throttled:
            try:
                self._link.close()
            except Exception as error:  # noqa: BLE001 - as the proxy does
                self._report(error)
            self.is_throttled = False
            self.sidecar.wake_soon()

    def _decide(self) -> None:
        world, request = self.chain.world, self._requests[0]
        self._plan_number += 1
        self._watch_for_spinning(world.now)
        if self._link is None:
            throttle = self.sidecar.throttle
            self._link = throttle.link(request.replica_id if throttle.side == "leader" else self.chain.leader.broker_id)
        held = max(world.now - self._since, _LEAST_HELD_SECONDS) if self._is_held else 0.0
        probes = self.sidecar.throttle.stats.offset_probes
        try:
            decision = self._link.plan(request, held)
        except Exception as error:  # noqa: BLE001 - as the proxy does
            self._give_up(error)
            self._take_next()
            self.chain.forward(self._number, request)
            return
        if world.trace is not None and not (self._is_held and isinstance(decision, Hold)):
            side = self.sidecar.meter.side
            world.say(f"{side}, link {self.chain.number}: {request_line(request)}\n{'':14}{decision_line(decision)}")
        if isinstance(decision, Hold):
            self._is_held = True
            self.sidecar.held[self] = None
            if math.isfinite(decision.until):
                delay = max(decision.until - world.now, _SHORTEST_HOLD_SECONDS)
                self.chain.later(delay, self._number, self._time_is_over, self._plan_number)
            return
        self._take_next()
        if isinstance(decision, Answer):
            version = request.header.api_version
            head, topics = scan(version, decision.frame)
            self._begin_passage(is_granted=False)
            self.chain.answer(self._number, Response(head, topics, {}, 0))
            return
        is_probe = self.sidecar.throttle.stats.offset_probes > probes
        self._begin_passage(is_granted=decision.is_granted and not self._in_flight)
        self._in_flight.append(_Asked(decision, self.terms, is_probe, world.now))
        self.chain.forward(self._number, decision.request)

    def _begin_passage(self, *, is_granted: bool) -> None:
        if self.sidecar.throttle.takes_out and self.chain.stretch.passage is not None:
            is_to_sidecar = self._link is not None and self._link.client_is_sidecar
            is_lent = self._link is not None and self._link.is_lent
            self.chain.stretch.passage.begin(is_granted=is_granted, is_lent=is_lent, is_to_sidecar=is_to_sidecar)

    def _time_is_over(self, plan_number: int) -> None:
        if self._plan_number == plan_number:
            self.replan()

    def _take_next(self) -> None:
        """The first request is done with."""
        self._drop_held()
        self._requests.popleft()
        if self._requests:
            self.chain.later(0.0, self._number, self._look_at_next, self._requests[0])

    def _look_at_next(self, request: FetchRequest) -> None:
        if self.chain.is_open and not self._is_held and self._requests and self._requests[0] is request:
            if self.is_throttled:
                self._since = self.chain.world.now
                self._decide()
            else:
                self.chain.forward(self._number, self._requests.popleft())
                if self._requests:
                    self.chain.later(0.0, self._number, self._look_at_next, self._requests[0])

    def _drop_held(self) -> None:
        self._is_held = False
        self.sidecar.held.pop(self, None)

    def _count_probe(self) -> None:
        self._probes += 1
        most = most_probes(self.chain.world.now - self._opened_at, self.reasons)
        if self.chain.client.is_honest and self._probes > most:
            text = f"{self.sidecar.meter.side}: {self._probes} of one link brought records, {most:.1f} are promised"
            self.chain.world.violate("probes", text)

    def _watch_for_spinning(self, now: float) -> None:
        if now != self._planned_at:
            self._planned_at, self._plans_at_once = now, 0
        self._plans_at_once += 1
        if self._plans_at_once > _MOST_PLANS_AT_ONCE:
            self.chain.world.violate("no spinning", f"{self._plans_at_once} plans of one fetch at one moment")

    def _give_up(self, error: Exception) -> None:
        self._report(error)
        self.is_throttled = False
        if self._link is not None:
            try:
                self._link.close()
            except Exception as second:  # noqa: BLE001 - as the proxy does
                self._report(second)

    def _report(self, error: Exception) -> None:
        self.sidecar.errors += 1
        if self.chain.client.is_honest:
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.chain.world.violate("no error", f"{error!r} at {at.filename.rsplit('/', 1)[-1]}:{at.lineno}")
