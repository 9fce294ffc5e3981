"""Checks `[capture]` beside the other tables: what could not work, or would keep brokers from each other."""

from __future__ import annotations

from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import CaptureTable, Config, Ingress


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
