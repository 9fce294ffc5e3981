"""Why a handshake failed: one of a few results for the metric, and words for the log."""

from __future__ import annotations

import ssl
from typing import Final

from weir.access.tls_contexts import refused_strictly
from weir.proxy.log import os_error_reason
from weir.proxy.tls.stats import HandshakeResult

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
        if refused_strictly(error):
            return "not_strict"
        return "wrong_name" if error.verify_code in _WRONG_NAME else "unknown_ca"
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return "closed"
    reason = error.reason or ""
    if reason in _RESULTS:
        return _RESULTS[reason]
    return "refused_by_peer" if "_ALERT_" in reason else "other"
