"""Certificates of the configuration: how long they are valid, and whether they have the names that brokers look for."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from weir.proxy.checkup.findings import Finding, listed
from weir.proxy.checkup.routes import World
from weir.proxy.config.address import numeric_address
from weir.proxy.config.tables import Config, Egress
from weir.proxy.tls.live_keys import LiveKeys

_DAY: Final = 86_400
_SOON_DAYS: Final = 30


def certificate_findings(config: Config, all_keys: list[LiveKeys], world: World, now: float) -> Iterator[Finding]:
    """Yield what is found of each certificate; `now` is in seconds since 1970."""
    names = list(_names_wanted(config, world))
    for keys in all_keys:
        if keys.keys.expires_at is None:
            continue
        days = (keys.keys.expires_at - now) / _DAY
        own = listed(keys.keys.names) if keys.keys.names else "no name"
        if days < 0:
            yield Finding(
                "fail", keys.name, f"the certificate expired {-days:.0f} days ago: put a new one into its files"
            )
        elif days < _SOON_DAYS:
            sentence = f"the certificate (for {own}) expires in {days:.0f} days: put a new one into its files"
            yield Finding("warn", keys.name, sentence)
        else:
            yield Finding("ok", keys.name, f"the certificate (for {own}) is valid for {days:.0f} days")
        hosts = [host for field, host in names if field == keys.name]
        missing = [host for host in hosts if not any(fnmatchcase(host, one.casefold()) for one in keys.keys.names)]
        if missing:
            sentence = (
                f"the certificate is for {own}, and who connects here looks for {listed(missing)}: with host names"
                " checked (ssl.endpoint.identification.algorithm) it is refused; issue one with that name"
            )
            yield Finding("warn", keys.name, sentence)


def _names_wanted(config: Config, world: World) -> Iterator[tuple[str, str]]:
    """Yield the host by which those who connect know a listener that ends TLS, by the table of its keys."""
    for path, route in config.routes:
        broker_id = route.peer if isinstance(route, Egress) else config.broker_id
        told = world.seen[route.upstream].brokers.get(broker_id)
        if told is not None and numeric_address(told.host) is None:
            yield f"{path}.tls", told.host.casefold()
    if config.capture is None or config.capture.peer_tls is None or world.teller is None:
        return
    for broker_id, broker in sorted(world.teller.brokers.items()):
        if broker_id != config.broker_id and numeric_address(broker.host) is None:
            yield "capture.peer_tls", broker.host.casefold()
