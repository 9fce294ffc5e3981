# SPDX-License-Identifier: Apache-2.0
"""Checks routes and `[capture]`: what would lead back into this sidecar, clash, or keep brokers from each other."""

from __future__ import annotations

import itertools
import socket

from weir.proxy.config.address import IPAddress, numeric_address
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import CaptureTable, Config, Ingress


def check_routes(config: Config) -> None:
    """Refuse routes that loop, clash or serve nothing; ConfigError names the field.

    A host name is resolved only if its port is that of one of weir's listeners; otherwise it cannot loop.
    """
    if not config.ingress and not config.egress and config.capture is None:
        raise ConfigError("ingress", "is missing, and so are egress and capture: the sidecar would have nothing to do")
    _check_peers(config)
    listeners = [(f"{path}.listen", route.listen) for path, route in config.routes]
    listeners.append(("admin.listen", config.admin.listen))
    for (first_field, first), (field, second) in itertools.combinations(listeners, 2):
        if first.port != 0 and first.port == second.port and _overlap(first.host, second.host):
            raise ConfigError(field, f"{second} is taken by {first_field} ({first})")
    for path, route in config.routes:
        field, upstream = f"{path}.upstream", route.upstream
        if upstream.port == 0:
            raise ConfigError(field, "has port 0: an upstream's port must be given")
        if _is_wildcard(upstream.host):
            raise ConfigError(field, f"{upstream.host} is an address to listen on, not one to connect to")
        for listen_field, listen in listeners:
            if listen.port == upstream.port and _overlap(upstream.host, listen.host):
                raise ConfigError(
                    field, f"{upstream} is this sidecar's own {listen_field} ({listen}): connections would loop"
                )


def _check_peers(config: Config) -> None:
    seen: dict[int, int] = {}
    for index, route in enumerate(config.egress):
        field = f"egress[{index}].peer"
        if route.peer == config.broker_id:
            raise ConfigError(field, f"{route.peer} is this broker itself (broker_id): a peer is another broker")
        if route.peer in seen:
            raise ConfigError(field, f"{route.peer} already has egress[{seen[route.peer]}]: one listener for each peer")
        seen[route.peer] = index


def _overlap(host: str, listening_host: str) -> bool:
    """Whether a connection to `host` may arrive at a listener bound to `listening_host`, if their ports are equal."""
    if host.casefold() == listening_host.casefold() or _is_wildcard(host):
        return True
    addresses = addresses_of(host)
    if any(address.is_unspecified for address in addresses):
        return True  # another way to write 0.0.0.0, such as "0": it connects to this machine
    if _is_wildcard(listening_host):
        return any(is_local(address) for address in addresses)
    return not addresses.isdisjoint(addresses_of(listening_host))


def _is_wildcard(host: str) -> bool:
    address = numeric_address(host)
    return address is not None and address.is_unspecified


def addresses_of(host: str) -> set[IPAddress]:
    """Return the addresses of a host name or of an address; none where it cannot be resolved."""
    if (numeric := numeric_address(host)) is not None:
        return {numeric}
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()  # a name that cannot be resolved yet is not known to loop
    resolved = (numeric_address(str(sockaddr[0])) for *_, sockaddr in found)
    return {address for address in resolved if address is not None}


def is_local(address: IPAddress) -> bool:
    """Whether this machine has the address: the kernel binds a socket to no other one."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def check_capture(config: Config) -> None:
    """Refuse what cannot be captured; ConfigError names the field."""
    capture = config.capture
    if capture is None:
        return
    if config.cluster is None:
        raise ConfigError("capture", "needs [cluster] bootstrap_servers: the cluster tells the brokers' addresses")
    if not capture.sides:
        raise ConfigError("capture.sides", 'is empty: nothing would be captured; leave it out, or name "leader"')
    for path, route in config.routes:
        side = "leader" if isinstance(route, Ingress) else "follower"
        if route.upstream.port == capture.port and side in capture.sides:
            raise ConfigError(f"{path}.upstream", f"has the captured port {capture.port}: choose one of the two ways")
    _check_tls(config, capture)


def _check_tls(config: Config, capture: CaptureTable) -> None:
    if capture.tls is not None and "leader" not in capture.sides:
        raise ConfigError("capture.tls", 'is for the leader\'s side, and capture.sides has no "leader"')
    if capture.tls is not None and capture.upstream_tls is None:
        # Whoever is not captured, and everybody when the sidecar ends, has TLS with the broker itself on that port.
        reason = "is missing: behind the captured port is the broker's own TLS; it may be an empty table"
        raise ConfigError("capture.upstream_tls", reason)
    if capture.peer_tls is not None and "follower" not in capture.sides:
        raise ConfigError("capture.peer_tls", 'is for the follower\'s side, and capture.sides has no "follower"')
    if (capture.peer_tls is None) != (capture.peer_upstream_tls is None):
        here, other = ("peer_upstream_tls", "peer_tls") if capture.peer_tls else ("peer_tls", "peer_upstream_tls")
        raise ConfigError(f"capture.{here}", f"is missing: capture.{other} is set, and peers' own TLS is on both ends")
    if config.sidecar_tls is not None and config.sidecar_tls.mode == "require" and capture.when == "throttled":
        reason = (
            'is "require", and sidecars that capture when = "throttled" come and go one by one: brokers without one'
            ' could not reach those with one; set mode = "prefer", or when = "always"'
        )
        raise ConfigError("tls.mode", reason)


def capture_notes(config: Config) -> list[str]:
    """Return notes about a capture that is legal, but perhaps not meant."""
    capture = config.capture
    if capture is None:
        return []
    notes = []
    if config.sidecar_tls is not None and config.sidecar_tls.mode == "require":
        notes.append(
            '[tls] has mode = "require": where a sidecar is not there, what its broker captures no more is refused by'
            ' the other sidecars, so the kernel does not fail open; with "prefer" it does.'
        )
    if capture.from_ == "anyone" and capture.tls is not None and capture.tls.client_auth == "required":
        notes.append(
            'capture.from is "anyone", and capture.tls takes the certificates of brokers alone: all others on port'
            f' {capture.port} are refused; leave them out with from = "brokers".'
        )
    return notes
