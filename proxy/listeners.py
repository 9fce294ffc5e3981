# SPDX-License-Identifier: Apache-2.0
"""The sides and the listeners of a sidecar, made as its configuration says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.proxy.config.address import Address
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.tables import Config, Limits
from weir.proxy.log import EventLog, os_error_reason
from weir.proxy.relay.admission import DESCRIPTORS_EACH, Admission, connections_with, descriptors_for
from weir.proxy.relay.buffers import BufferPool
from weir.proxy.relay.fetch_memory import DEFAULT_FETCH_MEMORY, FetchMemory
from weir.proxy.relay.handshakes import OpenTls, open_here
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.replica_sources import ReplicaSources
from weir.proxy.relay.side import Side
from weir.proxy.relay.stand_in import stand_ins
from weir.proxy.relay.stats import RelayStats
from weir.proxy.relay.turn_budget import PAUSE_SECONDS, TurnBudget
from weir.proxy.tls.results import TlsStats
from weir.quota.settings import SideName
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


class ListenError(Exception):
    """An address cannot be listened on. `field` is its path in the configuration, `reason` says why."""

    def __init__(self, field: str, address: Address, reason: str) -> None:
        super().__init__(field, address, reason)
        self.field = field
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: cannot listen on {self.address}: {self.reason}"


def new_listeners(
    config: Config, keys: RouteKeys, sides: Mapping[SideName, Side], clock: Callable[[], float]
) -> Iterator[tuple[str, Listener]]:
    """Yield a listener for each route, which does not listen yet, with the route's path in the configuration.

    Its name has its address as configured, so that another version of the file is told from this one.
    """
    for index, (ingress, (server, client)) in enumerate(zip(config.ingress, keys.ingress, strict=True)):
        sources = ReplicaSources(ingress.replicas_from, clock)
        upstream = Upstream(ingress.upstream, tls=client)
        listener = Listener(
            sides["leader"], ingress.listen, upstream, sources, server, name=f"ingress {ingress.listen}"
        )
        yield f"ingress[{index}]", listener
    for index, (egress, (server, client)) in enumerate(zip(config.egress, keys.egress, strict=True)):
        upstream = Upstream(egress.upstream, egress.peer, tls=client)
        side = sides["follower"]
        trials = stand_ins(server, client, side)
        name = f"egress {egress.peer} {egress.listen}"
        yield f"egress[{index}]", Listener(side, egress.listen, upstream, None, server, stand_ins=trials, name=name)


def fixed_upstream(listener: Listener) -> Upstream | None:
    """Return the upstream of a route; None where each connection has its own, as those that are captured."""
    return listener.upstream if isinstance(listener.upstream, Upstream) else None


def route_status(listener: Listener) -> dict[str, Any]:
    """Return a listener as the status and the log show it."""
    upstream = fixed_upstream(listener)
    route: dict[str, Any] = {
        "side": listener.side.stats.side,
        "listen": str(listener.address),
        "upstream": "captured" if upstream is None else str(upstream),
    }
    if listener.tls is not None:
        route["tls"] = "taken" if listener.tls.takes_plaintext else "required"
    if upstream is not None and upstream.tls is not None:
        route["upstream_tls"] = "preferred" if upstream.tls.falls_back else "required"
    if upstream is not None and upstream.peer is not None:
        route["peer"] = upstream.peer
    return route


@contextlib.contextmanager
def named(table: str, address: Address) -> Iterator[None]:
    """Turn an OSError into a ListenError of the table's `listen`."""
    try:
        yield
    except OSError as error:
        raise ListenError(f"{table}.listen", address, os_error_reason(error)) from error
