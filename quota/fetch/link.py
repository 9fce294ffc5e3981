# SPDX-License-Identifier: Apache-2.0
"""The replica fetches of one connection: what each brings in, may have, and has brought back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_response import encode_fetch_response
from weir.protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND, FIRST_SESSION_VERSION
from weir.protocol.response_scanner import ResponseHead, ScannedTopic
from weir.protocol.steps import Steps, at_once
from weir.quota.fetch.commit import commit, commit_pass, empty_answer
from weir.quota.fetch.decisions import Answer, Decision
from weir.quota.fetch.intake import TooManyPartitions, take_incremental, take_whole
from weir.quota.fetch.partitions import LinkState
from weir.quota.fetch.plan import decide, longest_hold
from weir.quota.fetch.settlement import Settlement
from weir.quota.figures import (
    CREDIT_SECONDS,
    LATE_SECONDS,
    LEAST_BYTES,
    MOST_PARTITIONS,
    STUCK_SECONDS,
    TICK_SECONDS,
    WINDOW_SECONDS,
)

_NO_ERROR = ResponseHead()
_BROKEN_OFF = ResponseHead(error_code=-1)  # such an answer says nothing of what it does not name


class ReplicaLink(LinkState):
    """One follower's fetches from one leader over one connection. One request is forwarded at a time.

    `plan_steps` and `settle_steps` do as `plan` and `settle` in steps; only one of them may be under way at a time.
    """

    def plan(self, request: FetchRequest, held_seconds: float = 0.0) -> Decision:
        """Decide about `request`, held back for `held_seconds` so far: 0 the first time. Raises TooManyPartitions."""
        return at_once(self.plan_steps(request, held_seconds))

    def plan_steps(self, request: FetchRequest, held_seconds: float = 0.0) -> Steps[Decision]:
        """Do the same as `plan` in steps of a few milliseconds. Between two the link may be closed, but not used."""
        partitions, rules, clock = self.partitions, self.throttle.rules, self.throttle.clock
        if held_seconds == 0.0:
            if self.in_flight is not None:
                raise RuntimeError("a request is planned while another one awaits its answer")
            if (refusal := (yield from self._take_in(request, clock()))) is not None:
                return refusal
        if partitions.generation != rules.generation:
            yield from partitions.classify_all(clock())
        if partitions.queue.waiting:
            yield from partitions.queue.rank_steps(clock(), self.moved_at)
        now = clock()  # read again: the steps so far took time
        if not (partitions.behind_count or partitions.unknown_count) or not rules.is_throttling:
            return (yield from commit_pass(self, request))  # most fetches end here
        if held_seconds >= longest_hold(request) - TICK_SECONDS:  # its follower asks again at once
            return Answer((yield from empty_answer(self, request)))
        return (yield from commit(*decide(self, request, now, held_seconds)))

    @property
    def client_is_sidecar(self) -> bool:
        """Whether the client is known to be the follower's own sidecar."""
        return self.partitions.is_asked_for_none

    @property
    def is_lent(self) -> bool:
        """Whether nothing is set aside for the answer awaited until it begins."""
        return self.in_flight is not None and self.in_flight.is_lent

    def answer_begins(self, size: int) -> None:
        """Note that a part of the answer awaited, of `size` bytes, has come. Only the first time counts."""
        fetch = self.in_flight
        if fetch is not None and fetch.answer_began_at is None:
            fetch.answer_began_at = self.throttle.clock()
            if self.answer_seconds < WINDOW_SECONDS:  # else what came with the last one has left the window by then
                self.accounts.begin(size)
            if not self.throttle.takes_out:
                self.accounts.let_arrive(math.inf)

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Take in that `arrived` bytes more have reached the follower, and that at most `on_way` may at any time.

        Returns how many more may be sent: `most`, or what quotas have room for. What may be sent may arrive at any
        time. Bytes that have `waited` for long go all the same: a record in sync may be behind them.
        """
        accounts = self.accounts
        if arrived:
            self.moved_at = self.throttle.clock()
            accounts.arrive(arrived)
        self.on_way = on_way
        if self._is_stuck(self.throttle.clock()):
            on_way = 0  # it counts as sent when it arrives
        accounts.let_arrive(on_way)
        size = min(most, accounts.room()) if most else 0
        if size < most and waited >= accounts.longest_wait():
            size = min(most, max(size, LEAST_BYTES))
        accounts.let_arrive(on_way + size, most - size)
        return size

    def settle(self, topics: Sequence[ScannedTopic], head: ResponseHead = _NO_ERROR) -> None:
        """Take in the answer awaited, which has passed whole: what the leader sent, under `head`."""
        at_once(self.settle_steps(topics, head))

    def settle_steps(self, topics: Sequence[ScannedTopic], head: ResponseHead = _NO_ERROR) -> Steps[None]:
        """Do the same in steps. The fetch is in flight until the last one: a link that ends gives back its bytes."""
        fetch = self.in_flight
        if fetch is None:
            raise RuntimeError("an answer is settled that no fetch awaits")
        fetch.is_whole = True
        if self.sessions.row.api_version >= FIRST_SESSION_VERSION:
            self.sessions.leader.answered(head.error_code, head.session_id)
        self.number += 1
        if fetch.answer_began_at is not None and not self.throttle.takes_out:
            self.accounts.let_arrive(math.inf)  # as since it began: more of it has come than was expected in a second
        yield from Settlement(self, fetch, head).steps(topics)
        self.in_flight = None

    def _is_stuck(self, now: float) -> bool:
        """Whether the follower has not taken anything for long, nor asked."""
        fetch = self.in_flight
        return now - max(self.moved_at, -math.inf if fetch is None else fetch.forwarded_at) >= STUCK_SECONDS

    def release_if_stuck(self) -> None:
        """Give back what a stuck peer does not take: others get the budget before its connection is closed."""
        now = self.throttle.clock()
        is_slow = self.on_way < math.inf
        if is_slow and self._is_stuck(now):
            self.accounts.let_arrive(0)
        elif not is_slow and now - self.moved_at >= STUCK_SECONDS:
            self.accounts.confirm()
        fetch = self.in_flight
        if fetch is None or (is_slow and fetch.answer_began_at is not None):
            return
        began_at = now if fetch.answer_began_at is None else fetch.answer_began_at
        if not self.throttle.takes_out and self.pace < math.inf and now - began_at >= LATE_SECONDS:
            self.accounts.let_arrive(max(LEAST_BYTES, self.pace * WINDOW_SECONDS))  # the rest takes longer
            return
        if now - max(fetch.forwarded_at, self.moved_at) >= STUCK_SECONDS + fetch.max_wait_seconds:
            self.accounts.count_as_sent()

    def close(self, came: Sequence[ScannedTopic] = (), *, is_over: bool = False) -> None:
        """End the link. Even if this fails half way, the link holds nothing of the budget afterwards.

        `came`: what there is of the answer awaited, and `is_over`: no more of it will come. Else what is reserved for
        it counts as sent; on the leader's side what `let_pass` was told of, and nothing where none began and `is_over`.
        """
        fetch = self.in_flight
        try:
            has_begun = fetch is not None and (fetch.is_whole or fetch.answer_began_at is not None)
            # Beside the broker all has passed of an answer that did not begin: nothing.
            is_known = is_over and not (has_begun and self.throttle.takes_out)
            if fetch is not None and (is_known or not fetch.parts):
                self.settle(came, _BROKEN_OFF)
            self.in_flight = None
            self.partitions.asker.close()
        finally:
            self.throttle.drop(self)

    def free_steps(self) -> Steps[None]:
        """Free what a closed link keeps, in steps: of tens of thousands of topics that takes a while."""
        yield from self.partitions.free()

    def _note_taken(self, seconds: float, size: int) -> None:
        """Take in how long the follower took for the last answer. A sidecar of its own may have held its next fetch."""
        self.live_until += seconds  # meanwhile no record could come
        if self.number > 2:  # after its first answer a follower may have had much else to do
            self.quickest = min(self.quickest, seconds)
        if size:
            taken_soon = CREDIT_SECONDS * size / max(seconds - self.quickest, TICK_SECONDS)
            self.most_beside_live = min(self.most_beside_live, taken_soon)

    def _take_in(self, request: FetchRequest, now: float) -> Steps[Answer | None]:
        """Take a request in. Returns the answer to it where it does not fit its session, else None."""
        # the follower asks again only after it has appended the last answer: that one has arrived
        self.accounts.confirm(let_arrive=True)
        self.on_way = math.inf
        if self.throttle.takes_out and not self.client_is_sidecar and (answered := self.answered) is not None:
            self.answered = None  # the next request may come after an answer of our own
            self._note_taken(now - answered[0], answered[1])
        partitions, sessions, version = self.partitions, self.sessions, request.header.api_version
        if request.replica_id != partitions.ends.follower:
            partitions.claimed_by(request.replica_id)
        is_other_version = version != sessions.row.api_version
        error_code = sessions.enter(request, self.throttle)
        if is_other_version and partitions.topics:  # entries kept have another layout, so the session can't go on
            yield from partitions.forget_all()
            if sessions.is_incremental:
                sessions.follower.end()
                error_code = error_code or FETCH_SESSION_ID_NOT_FOUND
        if error_code:
            correlation_id = request.header.correlation_id
            return Answer(encode_fetch_response(version, correlation_id, 0, [], error_code=error_code))
        if sessions.is_incremental:
            yield from take_incremental(partitions, request, now)
            if not partitions.count:
                sessions.follower.end()  # a whole request of no partitions closes the session, as at a broker
        else:
            self.number += 1
            yield from take_whole(partitions, request, now)
        if partitions.is_stranger:
            kept = self.throttle.keep_stranger(self, partitions.count + len(partitions.absent))
            if kept > MOST_PARTITIONS:
                raise TooManyPartitions(kept)
        return None
