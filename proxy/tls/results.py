# SPDX-License-Identifier: Apache-2.0
"""How handshakes end: one of a few results for the metric, words for the log, and what is counted."""

from __future__ import annotations

import ssl
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from weir.access.tls_contexts import refused_as_revoked, refused_strictly
from weir.proxy.log import os_error_reason
from weir.quota.settings import SideName

HandshakeResult = Literal[
    "ok",
    "certificate_expired",
    "unknown_ca",
    "no_certificate",
    "wrong_name",
    "revoked",
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
- `revoked`: a list of revoked certificates in `ca` has it, or no list there is valid for it.
- `not_strict`: it lacks what `[tls] strict` asks for.
- `version`: there is no version of TLS that both ends take.
- `not_tls`: the peer does not speak TLS.
- `refused_by_peer`: the peer said that it does not take this end's certificate, or something else of it.
- `too_many`: it gave way to a newer one, as too many were under way.
- `worker_ended`: the worker process that did it ended.
"""

KNOWN_RESULTS: Final[tuple[HandshakeResult, ...]] = get_args(HandshakeResult)

LASTING_FAILURES: Final[tuple[HandshakeResult, ...]] = (
    *("certificate_expired", "unknown_ca", "no_certificate", "wrong_name", "revoked", "not_strict"),
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


# X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_EXPIRED: Final = (9, 10)
# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_WRONG_NAME: Final = (62, 64)

_RESULTS: Final[dict[str, HandshakeResult]] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
    "UNSUPPORTED_PROTOCOL": "version",
    "TLSV1_ALERT_PROTOCOL_VERSION": "version",
    "NO_PROTOCOLS_AVAILABLE": "version",
    "WRONG_VERSION_NUMBER": "not_tls",
    "HTTP_REQUEST": "not_tls",
    "HTTPS_PROXY_REQUEST": "not_tls",
    "RECORD_LAYER_FAILURE": "not_tls",
    "UNEXPECTED_MESSAGE": "not_tls",
    "PACKET_LENGTH_TOO_LONG": "not_tls",
    "BAD_RECORD_TYPE": "not_tls",
    "UNEXPECTED_EOF_WHILE_READING": "closed",
}


class HandshakeFailed(OSError):
    """A connection has no TLS, or not with whom it should be."""

    def __init__(self, result: HandshakeResult, reason: str) -> None:
        super().__init__(reason)
        self.result = result
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def failed_by(error: OSError) -> HandshakeFailed:
    """Return what an error in a handshake means."""
    return HandshakeFailed(result_of(error), os_error_reason(error))


def result_of(error: OSError) -> HandshakeResult:
    """Return the result for the metric."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _EXPIRED:
            return "certificate_expired"
        if refused_as_revoked(error):
            return "revoked"
        if refused_strictly(error):
            return "not_strict"
        return "wrong_name" if error.verify_code in _WRONG_NAME else "unknown_ca"
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return "closed"
    reason = error.reason or ""
    if reason in _RESULTS:
        return _RESULTS[reason]
    return "refused_by_peer" if "_ALERT_" in reason else "other"
