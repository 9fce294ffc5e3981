"""What both sides of a sidecar share, and the bounds of `[limits]` on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weir.proxy.config.tables import Limits
from weir.proxy.log import EventLog
from weir.proxy.relay.admission import DESCRIPTORS_EACH, Admission, connections_with, descriptors_for
from weir.proxy.relay.buffers import BufferPool
from weir.proxy.relay.fetch_memory import DEFAULT_FETCH_MEMORY, FetchMemory
from weir.proxy.relay.handshakes import OpenTls, open_here
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.proxy.relay.turn_budget import PAUSE_SECONDS, TurnBudget
from weir.proxy.tls.results import TlsStats
from weir.quota.throttle import Throttle


@dataclass(eq=False)
class Bounds:
    """Makes the sides. They share memory, connections and turns of the event loop.

    `_descriptors` is how many files the process may have open; None: as many as it likes. `_each`: how many a
    connection takes. `_clock` gives monotonic seconds.
    """

    _log: EventLog
    _clock: Callable[[], float]
    _descriptors: int | None
    _each: int = DESCRIPTORS_EACH
    admission: Admission = field(default_factory=Admission)
    _fetch_memory: FetchMemory = field(default_factory=FetchMemory)
    _pool: BufferPool = field(default_factory=BufferPool)
    _turns: TurnBudget = field(default_factory=lambda: TurnBudget(pause=PAUSE_SECONDS))
    _sides: list[Side] = field(default_factory=list)

    def new_side(self, throttle: Throttle, tls: TlsStats, open_tls: OpenTls = open_here) -> Side:
        """Return a side that counts in `tls` its handshakes, which `open_tls` does."""
        side = Side(
            throttle,
            RelayStats(throttle.side),
            self._log,
            self._pool,
            self._clock,
            self._fetch_memory,
            turns=self._turns,
            tls=tls,
            admission=self.admission,
            open_tls=open_tls,
        )
        self._sides.append(side)
        return side

    def apply(self, limits: Limits) -> None:
        """Put `limits` in force. Connections that stand stay."""
        self._fetch_memory.limit = max(DEFAULT_FETCH_MEMORY, limits.fetch_request_max_bytes)
        for side in self._sides:
            side.fetch_size_limit = limits.fetch_request_max_bytes
            side.connect_seconds = limits.connect_timeout_seconds
            side.handshakes.seconds = limits.tls_handshake_seconds
            side.first_requests.seconds = limits.first_request_seconds
        self.admission.most = limits.max_connections
        self.admission.most_from_address = limits.max_connections_per_address
        needed = descriptors_for(limits.max_connections, self._each)
        if self._descriptors is not None and self._descriptors < needed:
            self.admission.most = connections_with(self._descriptors, self._each)
            self._log.warning(
                "too_few_open_files",
                reason=f"limits.max_connections is {limits.max_connections}, and each takes {self._each} open files",
                allowed=self._descriptors,
                needed=needed,
                effect=f"at most {self.admission.most} connections are let in; ulimit -n or LimitNOFILE= allows more",
            )
