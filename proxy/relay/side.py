# SPDX-License-Identifier: Apache-2.0
"""What all links of one side share: the throttle, buffers, counters, held fetches, and faults of the throttle."""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weir.protocol.errors import ProtocolError
from weir.protocol.request_events import BecameOpaque, Undecoded
from weir.protocol.request_stream import DEFAULT_FETCH_SIZE_LIMIT
from weir.proxy.log import EventLog, innermost_frame, os_error_reason
from weir.proxy.relay.admission import Admission, FirstRequests
from weir.proxy.relay.buffers import BufferPool
from weir.proxy.relay.fetch_memory import FetchMemory
from weir.proxy.relay.handshakes import Handshakes, OpenTls, open_here
from weir.proxy.relay.open_link import OpenLink, Sender, Why
from weir.proxy.relay.outcomes import RequestGate, Wait
from weir.proxy.relay.stats import RelayStats
from weir.proxy.relay.turn_budget import PAUSE_SECONDS, TurnBudget
from weir.proxy.relay.unread import UnreadClients
from weir.proxy.tls.results import TlsStats
from weir.quota.throttle import Throttle

FAILURES: Final = 3
"""A connection is closed when the throttle fails on it, and its client comes back: after so many it gets the spare."""

SPARE_SECONDS: Final = 30.0
"""For how long the spare decides, before the throttle is tried again."""

_FORGOTTEN_SECONDS: Final = 600.0
_MOST_CLIENTS: Final = 1_000


class ThrottleFaults:
    """Counts how often the throttle of one side failed, by client. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_client: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()  # when last, and how often

    def failed(self, client: Hashable) -> None:
        """Note that the throttle failed on a client's connection."""
        now = self._clock()
        last_at, count = self._by_client.pop(client, (now, 0))
        self._by_client[client] = now, count + 1 if now - last_at <= _FORGOTTEN_SECONDS else 1
        if len(self._by_client) > _MOST_CLIENTS:
            self._by_client.popitem(last=False)

    def spared_until(self, client: Hashable) -> float:
        """Return until when the spare is to decide about a client's fetches (clock seconds)."""
        last_at, count = self._by_client.get(client, (-math.inf, 0))
        return last_at + SPARE_SECONDS if count >= FAILURES else -math.inf


CONNECT_SECONDS: Final = 5.0
"""An upstream that does not accept a connection within this time counts as down."""

_SHORTEST_HOLD_SECONDS: Final = 0.001  # a loop's timers are no finer; a shorter hold would spin
_WAKE_INTERVAL_SECONDS: Final = 0.005  # each wake plans every held fetch again, at up to 0.5 ms each


@dataclass(eq=False, slots=True)
class Side:
    """One side of the sidecar. `clock` is the throttle's: monotonic seconds.

    `pool`, `fetch_memory`, `turns`, `tls` and `admission` may be shared by both sides. `fetch_size_limit` (bytes),
    `connect_seconds` and `new_gate`, which makes what may hold a link's other requests, count for new connections.
    `open_tls` does their handshakes.
    """

    throttle: Throttle
    stats: RelayStats
    log: EventLog
    pool: BufferPool = field(default_factory=BufferPool)
    clock: Callable[[], float] = time.monotonic
    fetch_memory: FetchMemory = field(default_factory=FetchMemory)
    fetch_size_limit: int = DEFAULT_FETCH_SIZE_LIMIT
    connect_seconds: float = CONNECT_SECONDS
    turns: TurnBudget = field(default_factory=lambda: TurnBudget(pause=PAUSE_SECONDS))
    new_gate: Callable[[OpenLink], RequestGate] | None = None
    tls: TlsStats = field(default_factory=TlsStats)
    admission: Admission = field(default_factory=Admission)
    open_tls: OpenTls = open_here
    by_hand_since: float | None = None
    """Since when a throttle that is neither the file's nor leased has been in force (clock seconds); None: none is."""
    held: HeldFetches = field(init=False)
    unread: UnreadClients = field(init=False)
    handshakes: Handshakes = field(init=False)
    first_requests: FirstRequests = field(init=False)
    throttle_faults: ThrottleFaults = field(init=False)

    def __post_init__(self) -> None:
        self.handshakes = Handshakes(self.stats.side, self.tls, self.log, self.clock, self.open_tls)
        self.first_requests = FirstRequests(self.clock)
        self.throttle_faults = ThrottleFaults(self.clock)
        self.held = HeldFetches(next_in_line=self.throttle.next_in_line, clock=self.clock)
        self.unread = UnreadClients(self.held.turns)

    # What a link reports; `client` and `upstream` are the names of its ends in the log

    def evicted(self, why: Why, client: str, kept_bytes: int) -> None:
        """Count and log that a link has to go, which keeps `kept_bytes` of requests."""
        if why == "no_request_came":
            self.stats.connections_dismissed += 1
            self.log.fault(why, client, side=self.stats.side)
        else:
            self.stats.protocol_errors[why] += 1
            event = "fetch_memory_full" if why == "fetch_memory" else why
            self.log.fault(event, client, side=self.stats.side, kept_bytes=kept_bytes)

    def failed(self, error: Exception, sender: Sender, client: str, upstream: str) -> bool:
        """Count and log that `sender` has sent what cannot be, or a bug. A connection that was lost is neither.

        Returns whether TLS failed. In TLS 1.3 a peer may refuse a certificate when this end has done its handshake.
        """
        stats, log = self.stats, self.log
        if isinstance(error, ProtocolError):
            name = client if sender == "client" else upstream
            stats.protocol_errors[error.kind] += 1
            log.fault("protocol_error", name, side=stats.side, kind=error.kind, sent_by=sender, reason=str(error))
        elif isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            stats.protocol_errors["tls"] += 1
            log.fault("tls_broken", f"{client} and {upstream}", side=stats.side, reason=os_error_reason(error))
            return True
        elif not isinstance(error, OSError):
            stats.relay_errors += 1
            log.error("relay_error", side=stats.side, error=repr(error), at=innermost_frame(error))
        return False

    def not_understood(self, event: Undecoded | BecameOpaque, client: str) -> None:
        """Count and log a fetch that passes undecoded, or that a link's bytes are not understood from now on."""
        stats, log = self.stats, self.log
        if isinstance(event, BecameOpaque):
            stats.passthrough[event.reason] += 1
            stats.opaque[event.reason] += 1
            log.fault("opaque_connection", client, side=stats.side, reason=event.reason)
            return
        reason, version, replica_id = event
        stats.count_undecoded(version, reason)
        told = {"reason": reason, "api_version": version, "replica_id": replica_id}
        log.fault("fetch_not_throttled", client, side=stats.side, **told)

    def note_set_by_hand(self, is_set: bool) -> None:
        """Note whether a part of the throttle, if it throttles anything, is neither the file's nor leased."""
        if not is_set or self.throttle.in_force_since is None:
            self.by_hand_since = None
        elif self.by_hand_since is None:
            self.by_hand_since = self.throttle.clock()


@dataclass(eq=False, slots=True)
class HeldFetches:
    """The links that hold a request. Those whose fetch waits for budget stand in line, the longest first.

    A plan may take 0.5 ms, so `turns` bounds how many run in one turn. `next_in_line` is that of Throttle, `clock`
    that of Side.
    """

    turns: TurnBudget = field(default_factory=TurnBudget)
    next_in_line: Callable[[], Sequence[Any] | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _holds: dict[OpenLink, tuple[Wait, asyncio.TimerHandle | None]] = field(default_factory=dict)
    _links: dict[Any, OpenLink] = field(default_factory=dict)  # by the name that `next_in_line` has for each
    _wake: asyncio.Handle | None = None
    _woken_at: float = -math.inf

    def __len__(self) -> int:
        return len(self._links)

    def wait(self, link: OpenLink, hold: Wait | None) -> None:
        """Have a link's request planned again as `hold` says, and no longer as the last one said. None: it holds none.

        One that waits for budget is put at the end of those that do. One that is in keeps its place.
        """
        before, timer = self._holds.get(link, (None, None))
        if hold is before:
            return
        if timer is not None:
            timer.cancel()
        if hold is not None:
            timer = None
            if math.isfinite(hold.until):
                delay = max(hold.until - self.clock(), _SHORTEST_HOLD_SECONDS)
                timer = asyncio.get_running_loop().call_later(delay, self.wake, (link,))
            self._holds[link] = hold, timer
            if hold.waits_for_budget is not None:
                self._links[hold.waits_for_budget] = link
        elif before is not None:
            del self._holds[link]
            self.turns.drop(link.replan)
            if self._links.pop(before.waits_for_budget, None) is not None:
                self.wake_soon()  # it went, so the next in line may find budget too

    def wake_soon(self) -> None:
        """Have those planned that are next in line, as budget flowed back. Many calls in one moment are one wake.

        All others would find no budget. With hundreds in line, planning every one of them at each answer would take a
        whole core.
        """
        if self._links and self._wake is None:
            loop = asyncio.get_running_loop()
            delay = self._woken_at + _WAKE_INTERVAL_SECONDS - loop.time()
            self._wake = loop.call_later(delay, self._wake_next) if delay > 0 else loop.call_soon(self._wake_next)

    def _wake_next(self) -> None:
        self._wake = None
        self._woken_at = asyncio.get_running_loop().time()
        first = self.next_in_line()
        # looked up rather than asked one by one: with 500 in line that took most of a core
        self.wake(self._links.values() if first is None else [self._links[one] for one in first if one in self._links])

    def wake_now(self) -> None:
        """Plan all again, as the settings or the view of the cluster changed: the one held longest first.

        The first few are planned before this returns.
        """
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._links:
            self._woken_at = asyncio.get_running_loop().time()
            self.wake(self._links.values())
            self.turns.run()

    def wake(self, links: Iterable[OpenLink]) -> None:
        """Plan these again in this order, a few in each turn of the loop. One that is due already keeps its place."""
        for link in links:
            self.turns.add(link.replan)
