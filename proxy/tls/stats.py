"""What is counted of TLS."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from weir.quota.settings import SideName

HandshakeResult = Literal[
    "ok",
    "certificate_expired",
    "unknown_ca",
    "no_certificate",
    "wrong_name",
    "not_strict",
    "version",
    "not_tls",
    "refused_by_peer",
    "closed",
    "timeout",
    "too_many",
    "worker_ended",
    "other",
]
"""How a handshake ended.

- `certificate_expired`, `unknown_ca`, `no_certificate`, `wrong_name`: what is wrong with the peer's certificate.
- `not_strict`: it lacks what `[tls] strict` asks for.
- `version`: there is no version of TLS that both ends take.
- `not_tls`: the peer does not speak TLS.
- `refused_by_peer`: the peer said that it does not take this end's certificate, or something else of it.
- `too_many`: it gave way to a newer one, as too many were under way.
- `worker_ended`: the worker process that did it ended.
"""

KNOWN_RESULTS: Final[tuple[HandshakeResult, ...]] = get_args(HandshakeResult)

LASTING_FAILURES: Final[tuple[HandshakeResult, ...]] = (
    *("certificate_expired", "unknown_ca", "no_certificate", "wrong_name", "not_strict"),
    *("version", "refused_by_peer", "other"),
)
"""How a handshake ends that ends so again. Who is not there, or is slow, may be back with the next connection; and who
speaks no TLS is no broker where brokers speak it.
"""

Peer = Literal["client", "upstream"]
"""Which end of a link: who connected to the sidecar, or whom it connected to."""


@dataclass(slots=True)
class TlsStats:
    """Counts of the whole process; all only grow."""

    handshakes: Counter[tuple[SideName, Peer, HandshakeResult]] = field(default_factory=Counter)
    plaintext: Counter[SideName] = field(default_factory=Counter)
    """Connections between sidecars without TLS, although TLS is preferred."""
    reloads: Counter[str] = field(default_factory=Counter)
    """Files of keys that had changed, by result: `ok` or `refused`."""
