"""One connection's replica fetches: each is planned by the throttle, which makes an outcome for the link."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from protocol.errors import ProtocolError, TooMany
from protocol.fetch import FetchRequest, check_replica_fetch, decode_fetch_request
from protocol.fetch_request import encoding_steps
from protocol.fetch_session import FIRST_SESSION_VERSION
from protocol.framing import Pending, ReplicaFetch, ResponseObserver
from protocol.header import SIZE
from protocol.request_stream import decodes_replicas
from protocol.response_scanner import FetchResponseScanner
from protocol.steps import Steps
from proxy import outcomes
from proxy.log import innermost_frame
from proxy.outcomes import Outcome
from proxy.relay import LinkThrottle, Relay
from proxy.replica_sources import ReplicaSources
from quota.fetch.context import TooManyPartitions
from quota.fetch.decisions import Answer, Decision, Forward, Hold

_LEAST_HELD_SECONDS: Final = 1e-6  # tells a later plan from the first


class ReplicaFetches:
    """The decisions about one connection's fetches, in request order. Whoever owns it carries the outcomes out.

    `peer` is the other broker's id where the route says it; else the first fetch's replica_id is. `sources` judges who
    at `host` is a replica; None: whoever says so. While a fetch is held the next may not be taken. A throttle that
    raises has a bug: from then on the connection's fetches pass untouched, for a quota may never break replication.
    Only a ProtocolError is the follower's fault, and ends the connection.
    """

    __slots__ = ("_host", "_peer", "_relay", "_sources", "_throttle", "in_flight", "is_released")

    def __init__(self, relay: Relay, peer: int | None, sources: ReplicaSources | None = None, host: str = "") -> None:
        self._relay = relay
        self._peer = peer
        self._sources = sources
        self._host = host
        self._throttle: LinkThrottle | None = None
        self.in_flight = 0
        """Fetches whose planned requests are forwarded and not answered."""
        self.is_released = False
        """Whether all further fetches pass."""

    def decodes(self, replica_id: int, api_version: int) -> bool:
        """Whether a fetch is a replica's, and to be decoded.

        Where an earlier one was taken for a replica's and this one is not, what was planned is let go of, and all that
        follows passes.
        """
        if self.is_released or not decodes_replicas(replica_id, api_version):
            return False
        if self._sources is None or self._sources.admits(self._host, replica_id):
            return True
        stats = self._relay.stats
        stats.passthrough["not_a_replica"] += 1
        self._relay.log.fault("not_a_replica", self._host, side=stats.side, replica_id=replica_id)
        if self._throttle is not None:
            self._release()
            self._relay.held.wake_soon()
        return False

    def take(self, event: ReplicaFetch) -> Steps[Outcome]:
        """Decide on a fetch that arrived. Raises MalformedFrame."""
        self._relay.stats.fetch_requests[event.header.api_version] += 1
        try:
            if isinstance(event.request, ProtocolError):
                raise event.request
            request = check_replica_fetch(event.request or decode_fetch_request(event.frame))
        except TooMany as error:
            return self._pass_from_now_on(f"too_many_{error.what}", error)
        return (yield from self._decide(event, request, None))

    def passed_undecoded(self, api_version: int) -> None:
        """A fetch passes that may be of this follower, but is too large to decode, or could not be.

        From v7 on the leader then has the follower's session, and what it names next is nothing that we know. So it all
        passes. Below v7 each fetch says everything: the next one may be throttled again.
        """
        if api_version >= FIRST_SESSION_VERSION:
            self._release()

    def settle(self, observers: Sequence[ResponseObserver]) -> Steps[None]:
        """Tell the throttle of the responses to its fetches that passed whole, oldest first."""
        scanners = [observer for observer in observers if isinstance(observer, FetchResponseScanner)]
        self.in_flight -= len(scanners)
        try:
            for scanner in scanners:
                if self._throttle is not None:
                    yield from self._throttle.settle_steps(scanner.topics, scanner.head)
        except Exception as error:  # noqa: BLE001 - see the class
            self._give_up(error)
        self._relay.held.wake_soon()

    def close(self) -> None:
        """The connection is gone."""
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

    def _decide(self, event: ReplicaFetch, request: FetchRequest, held_since: float | None) -> Steps[Outcome]:
        # Nothing else happens on the link between the steps, up to when the outcome is carried out: the budget, the
        # line of pending responses and the bytes sent have to agree.
        try:
            decision = yield from self._plan(request, held_since)
            if isinstance(decision, Hold):
                return self._hold(event, request, decision, held_since)
            outcome = yield from _outcome(event, request, decision)
        except TooManyPartitions as error:
            return self._pass_from_now_on("too_many_partitions", error)
        except ProtocolError:
            raise  # the request broke a rule: closing the connection gives back what was reserved for it
        except Exception as error:  # noqa: BLE001 - see the class
            self._give_up(error)
            return outcomes.Pass()
        if isinstance(outcome, outcomes.Answer):
            self._relay.stats.fetches_answered += 1
        else:
            self.in_flight += 1
        return outcome

    def _plan(self, request: FetchRequest, held_since: float | None) -> Steps[Decision]:
        relay = self._relay
        if self._throttle is None:
            peer = relay.stats.peer_of(request.replica_id) if self._peer is None else self._peer
            self._throttle = relay.throttle.link(peer)
        if held_since is None:
            return (yield from self._throttle.plan_steps(request))
        held_seconds = max(relay.clock() - held_since, _LEAST_HELD_SECONDS)
        return (yield from self._throttle.plan_steps(request, held_seconds))

    def _hold(
        self, event: ReplicaFetch, request: FetchRequest, decision: Hold, held_since: float | None
    ) -> outcomes.Hold:
        if held_since is None:
            held_since = self._relay.clock()
            self._relay.stats.fetches_held += 1
        return outcomes.Hold(decision.until, partial(self._decide, event, request, held_since), self._throttle)

    def _give_up(self, error: Exception) -> None:
        """Decode no more fetches of this connection; what the throttle reserved for it flows back."""
        self._report(error)
        self._relay.stats.passthrough["throttle_error"] += 1
        self._release()

    def _pass_from_now_on(self, reason: str, error: Exception) -> outcomes.Pass:
        relay = self._relay
        relay.log.fault(reason, str(self._peer), side=relay.stats.side, reason=str(error))
        relay.stats.passthrough[reason] += 1
        self._release()
        return outcomes.Pass()

    def _release(self) -> None:
        """Decode no more; in a session the leader does not know what its follower names: it begins anew with it."""
        self.is_released = True
        self._close_throttle()

    def _report(self, error: Exception) -> None:
        self._relay.stats.throttle_errors += 1
        self._relay.log.error(
            "throttle_error", side=self._relay.stats.side, error=repr(error), at=innermost_frame(error)
        )


def _outcome(
    event: ReplicaFetch, request: FetchRequest, decision: Forward | Answer
) -> Steps[outcomes.Forward | outcomes.Answer]:
    """The bytes for the broker, where it is asked, and what waits for the response."""
    version, correlation_id = event.header.api_version, event.header.correlation_id
    if isinstance(decision, Answer):
        return outcomes.Answer(Pending(correlation_id, answer=decision.frame))
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
    is_unchanged = decision.request is request
    data = with_size(event.frame) if is_unchanged else (yield from encoding_steps(decision.request))
    return outcomes.Forward(data, Pending(correlation_id, scanner))


def with_size(frame: bytes) -> bytes:
    """A frame as it stands on the wire."""
    return SIZE.pack(len(frame)) + frame
