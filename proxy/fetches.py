"""One connection's replica fetches: each is planned by the throttle, and the decision is carried out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final, Protocol

from protocol.errors import ProtocolError, TooMany
from protocol.fetch import FetchRequest, check_replica_fetch, decode_fetch_request, encode_fetch_request
from protocol.fetch_session import FIRST_SESSION_VERSION
from protocol.framing import Pending, ReplicaFetch
from protocol.header import SIZE
from protocol.request_stream import decodes_replicas
from protocol.response_scanner import FetchResponseScanner
from proxy.log import innermost_frame
from proxy.relay import LinkThrottle, Relay
from proxy.replica_sources import ReplicaSources
from quota.fetch.context import TooManyPartitions
from quota.fetch.decisions import Answer, Decision, Forward, Hold

_SHORTEST_HOLD_SECONDS: Final = 0.001  # a loop's timers are this coarse; less would spin
_LEAST_HELD_SECONDS: Final = 1e-6  # tells a later plan from the first


class FetchCarrier(Protocol):
    """The link that decisions are carried out on."""

    def forward(self, data: bytes, pending: Pending) -> None:
        """Send `data` to the broker; `pending` waits for its response."""

    def answer(self, pending: Pending) -> None:
        """Send the client an answer of our own when its turn comes."""

    def replan(self) -> None:
        """Have the held fetch planned again, and go on with what follows it."""

    def stop_decoding(self) -> None:
        """Let all further fetches pass."""


class _Held:
    __slots__ = ("event", "request", "since", "timer")

    def __init__(self, event: ReplicaFetch, request: FetchRequest, since: float) -> None:
        self.event = event
        self.request = request
        self.since = since
        self.timer: asyncio.TimerHandle | None = None


class ReplicaFetches:
    """The decisions about one connection's fetches, in request order.

    `peer` is the other broker's id where the route says it; else the first fetch's replica_id is. While one is held the
    next may not be taken. A throttle that raises has a bug: from then on the connection's fetches pass untouched, for a
    quota may never break replication. Only a ProtocolError is the follower's fault, and ends the connection.
    """

    __slots__ = ("_carrier", "_held", "_peer", "_relay", "_throttle", "in_flight")

    def __init__(self, relay: Relay, peer: int | None, carrier: FetchCarrier) -> None:
        self._relay = relay
        self._peer = peer
        self._carrier = carrier
        self._throttle: LinkThrottle | None = None
        self._held: _Held | None = None
        self.in_flight = 0
        """Fetches whose planned requests are forwarded and not answered."""

    @property
    def holding(self) -> bool:
        """Whether a fetch is held back."""
        return self._held is not None

    @property
    def held_bytes(self) -> int:
        """Size of the fetch that is held back, 0 when none is."""
        return 0 if self._held is None else len(self._held.event.frame)

    def take(self, event: ReplicaFetch) -> None:
        """Decide on a fetch that arrived. Raises MalformedFrame."""
        self._relay.stats.fetch_requests[event.header.api_version] += 1
        try:
            request = check_replica_fetch(decode_fetch_request(event.frame))
        except TooMany as error:
            self._forward_untouched_from_now_on(event, f"too_many_{error.what}", error)
            return
        self._decide(event, request)

    def passed_undecoded(self, api_version: int) -> None:
        """A fetch passes that may be of this follower, but is too large to decode, or could not be.

        From v7 on the leader then has the follower's session, and what it names next is nothing that we know. So it all
        passes. Below v7 each fetch says everything: the next one may be throttled again.
        """
        if api_version >= FIRST_SESSION_VERSION:
            self._release()

    def replan(self) -> None:
        """Decide again on the fetch that is held."""
        if self._held is not None:
            self._decide(self._held.event, self._held.request)

    def settle(self, scanners: Sequence[FetchResponseScanner]) -> None:
        """Tell the throttle of responses that passed whole, oldest first."""
        self.in_flight -= len(scanners)
        try:
            for scanner in scanners:
                if self._throttle is not None:
                    self._throttle.settle(scanner.topics, scanner.head)
        except Exception as error:  # noqa: BLE001 - see the class
            self._give_up(error)
        self._relay.held.wake_soon()

    def decodes(self, sources: ReplicaSources, host: str, replica_id: int, api_version: int) -> bool:
        """Whether a fetch from `host` is a replica's, and to be decoded.

        Where an earlier one was taken for a replica's and this one is not, what was planned is let go of, and all that
        follows passes.
        """
        if not decodes_replicas(replica_id, api_version):
            return False
        if sources.admits(host, replica_id):
            return True
        stats = self._relay.stats
        stats.passthrough["not_a_replica"] += 1
        self._relay.log.fault("not_a_replica", host, side=stats.side, replica_id=replica_id)
        if self._throttle is not None:
            self._release()
            self._relay.held.wake_soon()
        return False

    def drop_held(self) -> None:
        """Forget the fetch that is held, if there is one."""
        held, self._held = self._held, None
        if held is not None:
            self._relay.held.remove(self._carrier)
            if held.timer is not None:
                held.timer.cancel()

    def close(self) -> None:
        """The connection is gone."""
        self.drop_held()
        self._close_throttle()
        self._relay.held.wake_soon()

    def _close_throttle(self) -> None:
        throttle, self._throttle = self._throttle, None
        if throttle is None:
            return
        try:
            throttle.close()
        except Exception as error:  # noqa: BLE001 - see the class
            self._report(error)
            self._relay.throttle.drop(throttle)  # so that nothing stays reserved for it

    def _decide(self, event: ReplicaFetch, request: FetchRequest) -> None:
        # No await from here to the end: the budget, the line of pending responses and the bytes sent have to agree.
        try:
            decision = self._plan(request)
            if isinstance(decision, Hold):
                self._hold(event, request, decision)
                return
            data, pending = _carry_out(event, request, decision)
        except TooManyPartitions as error:
            self._forward_untouched_from_now_on(event, "too_many_partitions", error)
            return
        except ProtocolError:
            raise  # the request broke a rule: closing the connection gives back what was reserved for it
        except Exception as error:  # noqa: BLE001 - see the class
            self._give_up(error)
            data, pending = _untouched(event), Pending(event.header.correlation_id)
        self.drop_held()
        if data is None:
            self._relay.stats.fetches_answered += 1
            self._carrier.answer(pending)
        else:
            self.in_flight += pending.scanner is not None
            self._carrier.forward(data, pending)

    def _plan(self, request: FetchRequest) -> Decision:
        relay = self._relay
        if self._throttle is None:
            peer = relay.stats.peer_of(request.replica_id) if self._peer is None else self._peer
            self._throttle = relay.throttle.link(peer)
        if self._held is None:
            return self._throttle.plan(request)
        return self._throttle.plan(request, max(relay.clock() - self._held.since, _LEAST_HELD_SECONDS))

    def _hold(self, event: ReplicaFetch, request: FetchRequest, decision: Hold) -> None:
        relay, now = self._relay, self._relay.clock()
        if self._held is None:
            self._held = _Held(event, request, now)
            relay.held.add(self._carrier, self._throttle)
            relay.stats.fetches_held += 1
        elif self._held.timer is not None:
            self._held.timer.cancel()
            self._held.timer = None
        if math.isfinite(decision.until):
            delay = max(decision.until - now, _SHORTEST_HOLD_SECONDS)
            self._held.timer = asyncio.get_running_loop().call_later(delay, relay.held.wake, (self._carrier,))

    def _give_up(self, error: Exception) -> None:
        """Decode no more fetches of this connection; what the throttle reserved for it flows back."""
        self._report(error)
        self._relay.stats.passthrough["throttle_error"] += 1
        self._release()

    def _forward_untouched_from_now_on(self, event: ReplicaFetch, reason: str, error: Exception) -> None:
        relay = self._relay
        relay.log.fault(reason, str(self._peer), side=relay.stats.side, reason=str(error))
        relay.stats.passthrough[reason] += 1
        self._release()
        self.drop_held()
        self._carrier.forward(_untouched(event), Pending(event.header.correlation_id))

    def _release(self) -> None:
        """Decode no more; in a session the leader does not know what its follower names: it begins anew with it."""
        self._carrier.stop_decoding()
        self._close_throttle()

    def _report(self, error: Exception) -> None:
        self._relay.stats.throttle_errors += 1
        self._relay.log.error(
            "throttle_error", side=self._relay.stats.side, error=repr(error), at=innermost_frame(error)
        )


def _carry_out(event: ReplicaFetch, request: FetchRequest, decision: Forward | Answer) -> tuple[bytes | None, Pending]:
    """The bytes for the broker, None when it is not asked, and what waits for the response."""
    version, correlation_id = event.header.api_version, event.header.correlation_id
    if isinstance(decision, Answer):
        return None, Pending(correlation_id, answer=decision.frame)
    most_partitions, most_topics = decision.most_partitions, None
    if most_partitions is not None:  # a leader may put each partition into a topic of its own
        most_topics = most_partitions + len(decision.request.topics)
    scanner = FetchResponseScanner(
        version,
        correlation_id,
        decision.appended,
        decision.appended_topics,
        decision.walk,
        decision.head_patch,
        most_partitions=most_partitions,
        most_topics=most_topics,
    )
    unchanged = decision.request is request
    return _untouched(event) if unchanged else encode_fetch_request(decision.request), Pending(correlation_id, scanner)


def _untouched(event: ReplicaFetch) -> bytes:
    return SIZE.pack(len(event.frame)) + event.frame
