"""The replica fetches of one connection: what each brings in, may have, and has brought back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_response import encode_fetch_response
from weir.protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND, FIRST_SESSION_VERSION
from weir.protocol.response_scanner import ResponseHead, ScannedTopic
from weir.protocol.steps import Steps, at_once
from weir.quota.budget.accounts import LEAST_BYTES, LinkAccounts
from weir.quota.fetch.commit import commit, commit_pass
from weir.quota.fetch.decisions import Answer, Decision, Hold
from weir.quota.fetch.intake import MOST_PARTITIONS, TooManyPartitions, take_incremental, take_whole
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.observe import observe
from weir.quota.fetch.partitions import LinkPartitions
from weir.quota.fetch.plan import plan
from weir.quota.fetch.sessions import FetchSessions
from weir.quota.fetch.settlement import Settlement
from weir.quota.fetch.state import InFlight
from weir.quota.side_state import SideState

STUCK_SECONDS = 5.0  # a peer that takes an answer, or asks again, later than this counts as stuck
_NO_ERROR = ResponseHead()


class ReplicaLink:
    """One follower's fetches from one leader over one connection.

    - `plan` decides about a request; `settle` takes in the answer. One request is forwarded at a time.
    - `abandon` gives up on the answer still to come; `close` ends the link.
    - `plan_steps` and `settle_steps` do the same in steps; only one of them may be under way at a time.
    """

    def __init__(self, side: SideState, peer: int, open_session: Callable[[int], int]) -> None:
        """`open_session` takes a number of partitions, and returns the id of a new session for them or NO_SESSION."""
        self.throttle = side
        self.peer = peer
        self.state = LinkState(side, peer, open_session)
        self._api_version = -1  # of the fetch that was taken in last
        self._is_taken_in = True
        self._request_number = 0
        self._response_number = 0

    @property
    def accounts(self) -> LinkAccounts:
        """What the link holds of the budget."""
        return self.state.accounts

    @property
    def partitions(self) -> LinkPartitions:
        """The partitions that the follower asks for."""
        return self.state.partitions

    @property
    def sessions(self) -> FetchSessions:
        """The follower's fetch session, and this link's own session with the leader."""
        return self.state.sessions

    @property
    def replica_id(self) -> int:
        """The follower's broker id."""
        return self.state.partitions.replica_id

    @property
    def counted_peer(self) -> int:
        """The id under which the other broker's bytes are counted."""
        return self.state.partitions.counted_peer

    @property
    def unanswered_since(self) -> float | None:
        """The time (clock seconds) since which some partitions had no true answer, as they were left out."""
        return self.state.unanswered_since

    def plan(self, request: FetchRequest, held_seconds: float = 0.0) -> Decision:
        """Decide about `request`, which this hop has held back for `held_seconds` so far.

        Raises TooManyPartitions where the follower asks for more partitions than one link keeps.
        """
        return at_once(self.plan_steps(request, held_seconds))

    def plan_steps(self, request: FetchRequest, held_seconds: float = 0.0) -> Steps[Decision]:
        """Do the same as `plan` in steps of a few milliseconds.

        Between two of them the link may be closed, but not used.
        """
        state = self.state
        if held_seconds == 0.0:
            self._is_taken_in = False
        if not self._is_taken_in:
            if state.in_flight is not None:
                return Hold(math.inf)  # as brokers do: one request of a connection at a time
            self._is_taken_in = True
            if (refusal := (yield from self._take_in(request, self.throttle.clock()))) is not None:
                return refusal
        yield from state.partitions.reclassify_when_due(self.throttle.clock())
        if state.partitions.queue and self.throttle.settings.order != "round-robin":
            yield from state.catch_up.rank_steps(state.partitions.queue, self.throttle.clock())
        now = self.throttle.clock()  # read again: the steps so far took time
        if not state.partitions.waiting_count or not self.throttle.is_throttling:
            return (yield from commit_pass(state, self, request))  # most fetches end here
        view = observe(state, self, request, now, held_seconds)
        return (yield from commit(view, plan(view)))

    def answer_begins(self) -> None:
        """Note that a part of the answer awaited has come, and not all of it. Only the first time counts."""
        fetch = self.state.in_flight
        if fetch is not None and fetch.answer_began_at is None:
            fetch.answer_began_at = self.throttle.clock()
            if not self.throttle.takes_out:
                self.accounts.let_arrive(math.inf)

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Take in that `arrived` bytes more have reached the follower, and that at most `on_way` may at any time.

        Returns how many more may be sent: `most`, or what quotas have room for. What may be sent may arrive at any
        time. Bytes that have `waited` for long go all the same: a record in sync may be behind them.
        """
        accounts, state = self.accounts, self.state
        if arrived:
            state.moved_at = self.throttle.clock()
            counted = min(arrived, state.written_off)
            state.written_off -= counted
            self._arrive(arrived - counted)
        state.on_way = on_way
        on_way -= state.written_off
        accounts.let_arrive(on_way)
        size = min(most, accounts.room()) if most else 0
        if size < most and waited >= accounts.longest_wait():
            size = min(most, max(size, LEAST_BYTES))
        accounts.let_arrive(on_way + size, most - size)
        return size

    def _arrive(self, size: int) -> None:
        fetch = self.state.in_flight or InFlight()
        fetch.reserved = self.accounts.arrive(fetch.reserved, size)

    def settle(self, topics: Sequence[ScannedTopic], head: ResponseHead = _NO_ERROR) -> None:
        """Take in the answer awaited, which has passed whole.

        `topics` is what the leader sent in it, under `head`.
        """
        at_once(self.settle_steps(topics, head))

    def settle_steps(self, topics: Sequence[ScannedTopic], head: ResponseHead = _NO_ERROR) -> Steps[None]:
        """Do the same as `settle` in steps.

        The fetch is in flight until the last one: a link that ends gives back its bytes.
        """
        fetch = self.state.in_flight
        if fetch is None:
            raise RuntimeError("an answer is settled that no fetch awaits")
        if fetch.api_version >= FIRST_SESSION_VERSION:
            self.state.sessions.answered(head)
        self._response_number += 1
        yield from Settlement(self.state, fetch, head, self._response_number).steps(topics)
        self.state.in_flight = None

    def abandon(self) -> None:
        """Give up on the answer still to come.

        Reserved bytes may have been sent in part, so all of them count as sent.
        """
        self.accounts.confirm()
        fetch, self.state.in_flight = self.state.in_flight, None
        if fetch is not None:
            self._count_as_sent(fetch)

    def release_if_stuck(self) -> None:
        """Count as sent what a stuck peer has not taken: others get the budget before its connection is closed.

        Bytes that are held back from a slow follower have not been sent, and will count when they are.
        """
        now, state = self.throttle.clock(), self.state
        is_slow = state.on_way < math.inf
        if now - state.moved_at >= STUCK_SECONDS:
            if is_slow:
                self._arrive(int(state.on_way) - state.written_off)
                state.written_off = int(state.on_way)
                self.accounts.let_arrive(0)
            else:
                self.accounts.confirm()
        fetch = state.in_flight
        if fetch is None or (is_slow and fetch.answer_began_at is not None):
            return
        if now - max(fetch.forwarded_at, state.moved_at) >= STUCK_SECONDS + fetch.max_wait_seconds:
            self._count_as_sent(fetch)

    def _count_as_sent(self, fetch: InFlight) -> None:
        """Count, once, what went of an answer that never came whole, or hangs: it is not known, but likely."""
        if fetch.reserved:
            reserved, fetch.reserved = fetch.reserved, {}
            self.accounts.count_as_sent(reserved)

    def close(self) -> None:
        """End the link. Even if this fails half way, the link holds nothing of the budget afterwards."""
        try:
            self.abandon()
            self.partitions.close()
        finally:
            self.throttle.drop(self)

    def free_steps(self) -> Steps[None]:
        """Free what a closed link keeps, in steps: of tens of thousands of topics that takes a while."""
        self.state.catch_up.forget()
        yield from self.partitions.free()

    def _take_in(self, request: FetchRequest, now: float) -> Steps[Answer | None]:
        """Take a request in. Returns the answer to it where it does not fit its session, else None."""
        # the follower asks again only after it has appended the last answer: that one has arrived
        self.accounts.confirm()
        self.accounts.let_arrive(math.inf)
        self.state.on_way, self.state.written_off = math.inf, 0
        partitions, sessions, version = self.partitions, self.sessions, request.header.api_version
        partitions.claimed_id = request.replica_id
        error_code = sessions.enter(request, now)
        if not error_code and version != self._api_version:
            # The entries kept have the layout of another version, so the session can't go on: it begins anew.
            if sessions.is_incremental:
                sessions.follower.end()
                error_code = FETCH_SESSION_ID_NOT_FOUND
            else:
                self.state.catch_up.forget()
                yield from partitions.forget_all()
                self._api_version = version
        if error_code:
            correlation_id = request.header.correlation_id
            return Answer(encode_fetch_response(version, correlation_id, 0, [], error_code=error_code))
        if sessions.is_incremental:
            yield from take_incremental(partitions, request, now)
            if not partitions.count:
                sessions.follower.end()  # a whole request of no partitions closes the session, as at a broker
        else:
            self._request_number += 1
            yield from take_whole(partitions, request, self._request_number, now)
        if partitions.is_stranger and (kept := self.throttle.keep_stranger(self, partitions.count)) > MOST_PARTITIONS:
            raise TooManyPartitions(kept)
        return None
