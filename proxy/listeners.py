"""The listeners of a sidecar: one for each route of its configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weir.proxy.config.address import Address
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.tables import Config
from weir.proxy.log import os_error_reason
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.replica_sources import ReplicaSources
from weir.proxy.relay.side import Side
from weir.proxy.relay.stand_in import stand_ins
from weir.quota.settings import SideName


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
