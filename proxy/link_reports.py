"""What a link counts and logs when something is not as usual."""

from __future__ import annotations

from protocol.errors import ProtocolError
from protocol.framing import BecameOpaque, Undecoded
from proxy.fetch_memory import Why
from proxy.log import EventLog, innermost_frame
from proxy.stats import RelayStats


class LinkReports:
    """Tells operators of one link; `client` and `upstream` are how its ends are called."""

    __slots__ = ("_client", "_log", "_stats", "_upstream")

    def __init__(self, stats: RelayStats, log: EventLog, client: str, upstream: str) -> None:
        self._stats = stats
        self._log = log
        self._client = client
        self._upstream = upstream

    def evicted(self, why: Why, kept_bytes: int) -> None:
        """The link has to go because of what it keeps."""
        self._stats.protocol_errors[why] += 1
        event = "fetch_memory_full" if why == "fetch_memory" else why
        self._log.fault(event, self._client, side=self._stats.side, kept_bytes=kept_bytes)

    def failed(self, error: Exception, *, by_client: bool) -> None:
        """One direction is broken: a peer's bytes are, or the relay is. A connection that broke off is neither."""
        stats, log = self._stats, self._log
        if isinstance(error, ProtocolError):
            sent_by, name = ("client", self._client) if by_client else ("upstream", self._upstream)
            stats.protocol_errors[error.kind] += 1
            log.fault("protocol_error", name, side=stats.side, kind=error.kind, sent_by=sent_by, reason=str(error))
        elif not isinstance(error, OSError):
            stats.relay_errors += 1
            log.error("relay_error", side=stats.side, error=repr(error), at=innermost_frame(error))

    def undecoded(self, event: Undecoded) -> None:
        """A fetch passes that could not be decoded."""
        self._stats.count_undecoded(event.api_version, event.reason)
        self._log.fault(
            "fetch_not_throttled",
            self._client,
            side=self._stats.side,
            reason=event.reason,
            api_version=event.api_version,
            replica_id=event.replica_id,
        )

    def opaque(self, event: BecameOpaque) -> None:
        """From now on the connection's bytes are not understood."""
        self._stats.passthrough[event.reason] += 1
        self._log.fault("opaque_connection", self._client, side=self._stats.side, reason=event.reason)
