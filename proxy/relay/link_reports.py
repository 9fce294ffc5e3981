"""What a link counts and logs when something unusual happens."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from weir.protocol.errors import ProtocolError
from weir.protocol.request_events import BecameOpaque, Undecoded
from weir.proxy.log import EventLog, innermost_frame, os_error_reason
from weir.proxy.relay.open_link import Sender, Why
from weir.proxy.relay.stats import RelayStats


@dataclass(eq=False, slots=True)
class LinkReports:
    """Reports about one link; `client` and `upstream` are the names of its ends in the log."""

    _stats: RelayStats
    _log: EventLog
    _client: str
    _upstream: str
    tls_broken: bool = False
    """Whether TLS failed on one of its ends, after the handshake."""

    def evicted(self, why: Why, kept_bytes: int) -> None:
        """Report that the link has to go."""
        if why == "no_request_came":
            self._stats.connections_dismissed += 1
            self._log.fault(why, self._client, side=self._stats.side)
        else:
            self._stats.protocol_errors[why] += 1
            event = "fetch_memory_full" if why == "fetch_memory" else why
            self._log.fault(event, self._client, side=self._stats.side, kept_bytes=kept_bytes)

    def failed(self, error: Exception, sender: Sender) -> None:
        """Report that `sender` has sent what cannot be, or a bug. A connection that was lost is neither.

        In TLS 1.3 a peer may refuse a certificate when this end has done its handshake already.
        """
        stats, log = self._stats, self._log
        if isinstance(error, ProtocolError):
            name = self._client if sender == "client" else self._upstream
            stats.protocol_errors[error.kind] += 1
            log.fault("protocol_error", name, side=stats.side, kind=error.kind, sent_by=sender, reason=str(error))
        elif isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            self.tls_broken = True
            stats.protocol_errors["tls"] += 1
            ends = f"{self._client} and {self._upstream}"
            log.fault("tls_broken", ends, side=stats.side, reason=os_error_reason(error))
        elif not isinstance(error, OSError):
            stats.relay_errors += 1
            log.error("relay_error", side=stats.side, error=repr(error), at=innermost_frame(error))

    def passes(self, event: Undecoded | BecameOpaque) -> None:
        """Report a fetch that passes undecoded, or that the connection's bytes are not understood from now on."""
        stats, log = self._stats, self._log
        if isinstance(event, BecameOpaque):
            stats.passthrough[event.reason] += 1
            log.fault("opaque_connection", self._client, side=stats.side, reason=event.reason)
            return
        reason, api_version, replica_id = event
        stats.count_undecoded(api_version, reason)
        log.fault(
            "fetch_not_throttled",
            self._client,
            side=stats.side,
            reason=reason,
            api_version=api_version,
            replica_id=replica_id,
        )
