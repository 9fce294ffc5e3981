# SPDX-License-Identifier: Apache-2.0
"""The replica fetches of one connection.

The throttle plans each of them, and this module turns the plan into an outcome.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from weir.lag.broker_ids import NO_BROKER
from weir.protocol.errors import ProtocolError, TooMany
from weir.protocol.fetch_request import FetchRequest, check_replica_fetch, decode_fetch_request, encoding_steps
from weir.protocol.fetch_session import FIRST_SESSION_VERSION
from weir.protocol.header import SIZE
from weir.protocol.request_events import ReplicaFetch
from weir.protocol.request_stream import decodes_replicas
from weir.protocol.response_scanner import FetchResponseScanner, ScannedTopic
from weir.protocol.response_stream import Pending
from weir.protocol.steps import Steps
from weir.proxy.log import innermost_frame
from weir.proxy.relay.outcomes import Outcome, Reply, Send, Wait, Waiting
from weir.proxy.relay.replica_sources import ReplicaSources
from weir.proxy.relay.side import Side
from weir.quota.fetch.decisions import Answer, Hold
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
    - A fetch may be held no longer, as its client's SASL session ends, and cannot be answered: a broker, too, would
      close the connection after the end.
    """


@dataclass(eq=False, slots=True)
class ReplicaFetches:
    """Decides about one connection's fetches, in the order of the requests. The owner carries the outcomes out.

    - `peer` is the other broker's id where the route names it. Otherwise it is the fetch's replica_id.
    - `sources` judges whether `host` may be a replica. None: every host that claims to be one is believed.
    - While a fetch is held, or its answer has not passed, the next one must not be taken.

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
    is_released: bool = False
    """Whether all further fetches of the connection pass."""
    session_end: float = math.inf
    """Until when a request may be held (clock seconds): shortly before the broker takes no more of them."""
    throttle: LinkThrottle | None = None
    kept: int = 0
    """Bytes of the last fetch as it is sent on, or of the answer to it that is held or made here.

    The owner sets it to 0 when they have gone.
    """
    _client: Hashable = None
    _sender: tuple[int, bool] = (NO_BROKER, False)  # of the last fetch: its replica_id, and whether it is a stranger
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
        self.is_replicas, sender = True, (replica_id, standing == "stranger")
        if sender != self._sender:
            self.close()  # with the next one its follower begins a new session
            self._sender = sender
        if standing == "stranger":
            stats.stranger_fetches += 1
            effect = "it is throttled, and takes turns with all strangers together"
            self.side.log.fault("unknown_replica", self.host, side=stats.side, replica_id=replica_id, effect=effect)
        return True

    def take(self, event: ReplicaFetch) -> Waiting[Outcome]:
        """Decide about a fetch that has arrived. One with too much passes, and all after it. Raises MalformedFrame."""
        stats = self.side.stats
        stats.fetch_requests[event.header.api_version] += 1
        try:
            if isinstance(event.request, ProtocolError):
                raise event.request
            request = check_replica_fetch(event.request or decode_fetch_request(event.frame))
            if request.max_wait_ms > _LONGEST_WAIT_MS:  # nothing is held or set aside for longer
                request = request.with_(max_wait_ms=_LONGEST_WAIT_MS)
            return (yield from self._decide(event, request))
        except (TooMany, TooManyPartitions) as error:
            reason = f"too_many_{error.what if isinstance(error, TooMany) else 'partitions'}"
            self.side.log.fault(reason, str(self.peer), side=stats.side, reason=str(error))
            stats.passthrough[reason] += 1
            self._release()
            return Send(with_size(event.frame), Pending(event.header.correlation_id))

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

    def answer_begins(self, size: int) -> None:
        """Tell the throttle that a part of an answer of `size` bytes has come; 0 while its size has not."""
        if self.throttle is not None and size:
            self.throttle.answer_begins(size)

    def settle(self, scanner: FetchResponseScanner) -> Steps[None]:
        """Tell the throttle about the answer, which has passed whole. Budget may have flowed back then."""
        try:
            if self.throttle is not None:
                yield from self.throttle.settle_steps(scanner.topics, scanner.head)
        except Exception as error:
            raise self.failed(error) from error
        self.side.held.wake_soon()

    def close(self, came: Sequence[ScannedTopic] = (), *, is_over: bool = False) -> None:
        """End the connection's part of the throttle: nothing stays reserved. Arguments are those of ReplicaLink's."""
        throttle, self.throttle = self.throttle, None
        if throttle is None:
            return
        try:
            throttle.close(came, is_over=is_over)
            self.side.turns.add_steps(throttle.free_steps())
        except Exception as error:  # noqa: BLE001 - see the class
            self._report(error)
            try:
                self.side.throttle.drop(cast(ReplicaLink, throttle))  # so that it keeps nothing reserved
            except Exception as another:  # noqa: BLE001 - the rest of the link has to be closed all the same
                self._report(another)

    def _decide(self, event: ReplicaFetch, request: FetchRequest) -> Waiting[Outcome]:
        # Between these steps, and until the outcome is carried out, nothing else happens on the link: the budget, the
        # pending responses and the bytes sent have to agree.
        side, header = self.side, event.header
        try:
            throttle = self._throttle_of(request)
            decision = yield from throttle.plan_steps(request)
            held_since = side.clock()
            side.stats.fetches_held += isinstance(decision, Hold)
            while isinstance(decision, Hold):
                yield Wait(min(decision.until, self.session_end), throttle)
                now = side.clock()
                is_last = now >= self.session_end
                held_seconds = _LONG_HELD_SECONDS if is_last else max(now - held_since, _LEAST_HELD_SECONDS)
                decision = yield from throttle.plan_steps(request, held_seconds)
                if is_last and isinstance(decision, Hold):
                    raise ConnectionEnds
            if isinstance(decision, Answer):
                side.stats.fetches_answered += 1
                self.kept = len(decision.frame)
                return Reply(Pending(header.correlation_id, answer=decision.frame))
            scanner = FetchResponseScanner(header.api_version, header.correlation_id, decision.expected, self._may_hold)
            is_unchanged = decision.request is request
            data = with_size(event.frame) if is_unchanged else (yield from encoding_steps(decision.request))
        except (ProtocolError, ConnectionEnds, TooManyPartitions):
            raise  # closing the connection gives back what it had reserved
        except Exception as error:
            raise self.failed(error) from error
        self.kept = len(data)
        return Send(data, Pending(header.correlation_id, scanner), decision.is_granted)

    def _may_hold(self, size: int) -> bool:
        """Return whether an answer of `size` bytes may be held. If so, it is kept from now on."""
        if has_room := self.side.fetch_memory.has_room(self.host, size):
            self.kept = size
        return has_room

    def _throttle_of(self, request: FetchRequest) -> LinkThrottle:
        """Return what decides about a fetch that has arrived."""
        side = self.side
        if -math.inf < self._spared_until <= side.clock():
            self.close()
        if self.throttle is None:
            _, is_stranger = self._sender
            self._client = self.host, request.replica_id if self.peer is None else self.peer
            self._spared_until = side.throttle_faults.spared_until(self._client)
            if side.clock() < self._spared_until:
                self.throttle = InSyncOnly(side.clock)
            else:
                is_new = self.peer is None and not is_stranger
                peer = side.stats.peer_of(request.replica_id) if is_new else self.peer
                self.throttle = side.throttle.link(NO_BROKER if peer is None else peer, is_stranger=is_stranger)
        return self.throttle

    def failed(self, error: Exception) -> ConnectionEnds:
        """Note that the throttle failed. What is returned ends the connection: nothing stays reserved."""
        self._report(error)
        self.side.throttle_faults.failed(self._client)
        return ConnectionEnds()

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
