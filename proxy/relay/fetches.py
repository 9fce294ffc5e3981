"""The replica fetches of one connection.

The throttle plans each of them, and this module turns the plan into an outcome.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from weir.lag.broker_ids import NO_BROKER
from weir.protocol.errors import ProtocolError, TooMany
from weir.protocol.fetch_request import FetchRequest, check_replica_fetch, decode_fetch_request, encoding_steps
from weir.protocol.fetch_session import FIRST_SESSION_VERSION
from weir.protocol.header import SIZE
from weir.protocol.request_events import ReplicaFetch
from weir.protocol.request_stream import decodes_replicas
from weir.protocol.response_scanner import FetchResponseScanner
from weir.protocol.response_stream import Pending, ResponseObserver
from weir.protocol.steps import Steps
from weir.proxy.log import innermost_frame
from weir.proxy.relay.outcomes import Outcome, Reply, Send, Wait
from weir.proxy.relay.replica_sources import ReplicaSources
from weir.proxy.relay.side import Side
from weir.quota.fetch.decisions import Answer, Decision, Hold
from weir.quota.fetch.in_sync_only import InSyncOnly
from weir.quota.fetch.intake import TooManyPartitions
from weir.quota.fetch.link import ReplicaLink
from weir.quota.figures import LONGEST_HOLD_SECONDS

_LONGEST_WAIT_MS: Final = int(1000 * LONGEST_HOLD_SECONDS)
_LEAST_HELD_SECONDS: Final = 1e-6  # tells the second plan of a held fetch from its first
_LONG_HELD_SECONDS: Final = 3600.0  # longer than any fetch is held: the next plan is its last

LinkThrottle = ReplicaLink | InSyncOnly
"""One connection's part of the throttle, or the spare in its place."""

SESSION_PART: Final = 0.95
"""The part of a SASL session's lifetime in which requests may be held. Kafka's clients authenticate again at their next
request after 0.85 to 0.95 of it."""


class ConnectionEnds(OSError):
    """A connection is closed on purpose, which nobody has to be told any more.

    - The throttle has failed, which is reported.
    - Its client is taken for somebody else while answers to its fetches are due.
    - A fetch may be held no longer, as its client's SASL session ends, and cannot be answered: a broker, too, would
      close the connection after the end.
    """


@dataclass(eq=False, slots=True)
class ReplicaFetches:
    """Decides about one connection's fetches, in the order of the requests. The owner carries the outcomes out.

    - `peer` is the other broker's id where the route names it. Otherwise it is the fetch's replica_id.
    - `sources` judges whether `host` may be a replica. None: every host that claims to be one is believed.
    - While a fetch is held, the next one must not be taken.

    A throttle that raises has a bug, which may neither lift a quota nor break replication: the connection ends, and its
    client comes back to a fresh state. Where that fails again and again, a spare decides for a while, which lets pass
    what is in sync and nothing else. A ProtocolError is the follower's fault, and ends the connection too.
    """

    side: Side
    peer: int | None
    sources: ReplicaSources | None = None
    host: str = ""
    is_replicas: bool = False
    """Whether a fetch of a replica, or of a stranger who claims to be one, has come."""
    in_flight: int = 0
    """Fetches that were planned and forwarded, and are not answered yet."""
    is_released: bool = False
    """Whether all further fetches of the connection pass."""
    session_end: float = math.inf
    """Until when a request may be held (clock seconds): shortly before the broker takes no more of them."""
    has_settled: bool = False
    """Whether answers have passed since the owner has looked: budget may have flowed back."""
    ended: list[LinkThrottle] = field(default_factory=list)
    """What is to be freed in steps. Whoever does that takes it out."""
    throttle: LinkThrottle | None = None
    _client: Hashable = None
    _sender: tuple[int, bool] = (NO_BROKER, False)  # of the last fetch: its replica_id, and whether it is a stranger
    _known_as: tuple[int, bool] = (NO_BROKER, False)  # the sender that `throttle` is for
    _spared_until: float = -math.inf  # clock seconds

    def decodes(self, replica_id: int, api_version: int) -> bool:
        """Return whether a fetch is a replica's, or a stranger's who claims to be one, and has to be decoded."""
        if self.is_released or not decodes_replicas(replica_id, api_version):
            return False
        standing = "replica" if self.sources is None else self.sources.standing(self.host, replica_id)
        stats = self.side.stats
        if standing == "consumer":
            stats.passthrough["not_a_replica"] += 1
            self.side.log.fault("not_a_replica", self.host, side=stats.side, replica_id=replica_id)
            return False
        self.is_replicas, self._sender = True, (replica_id, standing == "stranger")
        if standing == "stranger":
            stats.stranger_fetches += 1
            effect = "it is throttled, and takes turns with all strangers together"
            self.side.log.fault("unknown_replica", self.host, side=stats.side, replica_id=replica_id, effect=effect)
        return True

    def take(self, event: ReplicaFetch) -> Steps[Outcome]:
        """Decide about a fetch that has arrived. Raises MalformedFrame."""
        self.side.stats.fetch_requests[event.header.api_version] += 1
        try:
            if isinstance(event.request, ProtocolError):
                raise event.request
            request = check_replica_fetch(event.request or decode_fetch_request(event.frame))
            if request.max_wait_ms > _LONGEST_WAIT_MS:  # nothing is held or set aside for longer
                request = request.with_(max_wait_ms=_LONGEST_WAIT_MS)
        except TooMany as error:
            return self._pass_from_now_on(event, f"too_many_{error.what}", error)
        return (yield from self._decide(event, request, None))

    def passed_undecoded(self, api_version: int) -> None:
        """Note that a fetch, perhaps the follower's, passes undecoded: it is too large, or could not be decoded.

        From v7 on the leader then knows the follower's session, and later fetches list changes to partitions that weir
        does not know. So every further fetch passes. Below v7 each fetch is complete, and the next one may be throttled
        again.
        """
        if api_version >= FIRST_SESSION_VERSION:
            self._release()

    def session_lasts(self, seconds: float | None) -> None:
        """Note for how long the client's SASL session lasts from now on; None: no end is known."""
        self.session_end = math.inf if seconds is None else self.side.clock() + SESSION_PART * seconds

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Tell the throttle what has reached the client. Returns how many bytes more may be sent."""
        if self.throttle is None:
            return most
        try:
            return self.throttle.let_pass(arrived, on_way, most, waited)
        except Exception as error:
            raise self._failed(error) from error

    def settle(self, observers: Sequence[ResponseObserver]) -> Steps[None] | None:
        """Tell the throttle about the responses that passed whole, the oldest first; None: it need not know of them."""
        scanners = [observer for observer in observers if isinstance(observer, FetchResponseScanner)]
        return self._settle(scanners) if scanners else None

    def _settle(self, scanners: Sequence[FetchResponseScanner]) -> Steps[None]:
        self.in_flight -= len(scanners)
        try:
            for scanner in scanners:
                if self.throttle is not None:
                    yield from self.throttle.settle_steps(scanner.topics, scanner.head)
        except Exception as error:
            raise self._failed(error) from error
        self.has_settled = True

    def close(self) -> None:
        """End the connection's part of the throttle: nothing stays reserved."""
        throttle, self.throttle = self.throttle, None
        if throttle is None:
            return
        try:
            throttle.close()
            self.ended.append(throttle)
        except Exception as error:  # noqa: BLE001 - see the class
            self._report(error)
            try:
                self.side.throttle.drop(cast(ReplicaLink, throttle))  # so that it keeps nothing reserved
            except Exception as another:  # noqa: BLE001 - the rest of the link has to be closed all the same
                self._report(another)

    def _decide(self, event: ReplicaFetch, request: FetchRequest, held_since: float | None) -> Steps[Outcome]:
        # Between these steps, and until the outcome is carried out, nothing else happens on the link: the budget, the
        # pending responses and the bytes sent have to agree.
        try:
            decision = yield from self._plan(request, held_since)
            if isinstance(decision, Hold):
                return self._hold(event, request, decision, held_since)
            if isinstance(decision, Answer):
                self.side.stats.fetches_answered += 1
                return Reply(Pending(event.header.correlation_id, answer=decision.frame))
            header, is_unchanged = event.header, decision.request is request
            scanner = FetchResponseScanner(header.api_version, header.correlation_id, decision.expected)
            data = with_size(event.frame) if is_unchanged else (yield from encoding_steps(decision.request))
        except TooManyPartitions as error:
            return self._pass_from_now_on(event, "too_many_partitions", error)
        except (ProtocolError, ConnectionEnds):
            raise  # closing the connection gives back what it had reserved
        except Exception as error:
            raise self._failed(error) from error
        self.in_flight += 1
        return Send(data, Pending(header.correlation_id, scanner), decision.is_granted)

    def _plan(self, request: FetchRequest, held_since: float | None) -> Steps[Decision]:
        side = self.side
        is_other = self._sender != self._known_as
        if self.throttle is not None and is_other and self.in_flight:
            raise ConnectionEnds
        is_over = -math.inf < self._spared_until <= side.clock() or is_other
        if is_over and not self.in_flight and held_since is None:
            self.close()  # with the next one its follower begins a new session
        if self.throttle is None:
            self._known_as = self._sender
            _, is_stranger = self._sender
            self._client = self.host, request.replica_id if self.peer is None else self.peer
            self._spared_until = side.throttle_faults.spared_until(self._client)
            if side.clock() < self._spared_until:
                self.throttle = InSyncOnly(side.clock)
            else:
                is_new = self.peer is None and not is_stranger
                peer = side.stats.peer_of(request.replica_id) if is_new else self.peer
                self.throttle = side.throttle.link(NO_BROKER if peer is None else peer, is_stranger=is_stranger)
        if held_since is None:
            return (yield from self.throttle.plan_steps(request))
        now = side.clock()
        held_seconds = max(now - held_since, _LEAST_HELD_SECONDS) if now < self.session_end else _LONG_HELD_SECONDS
        return (yield from self.throttle.plan_steps(request, held_seconds))

    def _hold(self, event: ReplicaFetch, request: FetchRequest, decision: Hold, held_since: float | None) -> Wait:
        if held_since is None:
            held_since = self.side.clock()
            self.side.stats.fetches_held += 1
        elif self.side.clock() >= self.session_end:
            raise ConnectionEnds
        return Wait(
            min(decision.until, self.session_end), partial(self._decide, event, request, held_since), self.throttle
        )

    def _failed(self, error: Exception) -> ConnectionEnds:
        """Note that the throttle failed. What is returned ends the connection: nothing stays reserved."""
        self._report(error)
        self.side.throttle_faults.failed(self._client)
        return ConnectionEnds()

    def _pass_from_now_on(self, event: ReplicaFetch, reason: str, error: Exception) -> Send:
        side = self.side
        side.log.fault(reason, str(self.peer), side=side.stats.side, reason=str(error))
        side.stats.passthrough[reason] += 1
        self._release()
        return Send(with_size(event.frame), Pending(event.header.correlation_id))

    def _release(self) -> None:
        """Decode no more fetches.

        A follower in a session gets an error by the leader, and begins a new session with it.
        """
        self.is_released = True
        self.close()

    def _report(self, error: Exception) -> None:
        self.side.stats.throttle_errors += 1
        self.side.log.error("throttle_error", side=self.side.stats.side, error=repr(error), at=innermost_frame(error))


def with_size(frame: bytes) -> bytes:
    """Return a frame with its size prefix."""
    return SIZE.pack(len(frame)) + frame
