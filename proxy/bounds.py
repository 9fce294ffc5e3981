"""Puts the bounds of `[limits]` in force, which count for both sides together."""

from __future__ import annotations

from collections.abc import Collection

from proxy.config.tables import Limits
from proxy.log import EventLog
from proxy.relay.admission import Admission, connections_with, descriptors_for
from proxy.relay.fetch_memory import DEFAULT_FETCH_MEMORY, FetchMemory
from proxy.relay.side import Side


class Bounds:
    """What both sides share of memory and connections.

    `descriptors` is how many files the process may have open; None: as many as it likes.
    """

    def __init__(self, log: EventLog, descriptors: int | None) -> None:
        self.fetch_memory = FetchMemory()
        self.admission = Admission()
        self._log = log
        self._descriptors = descriptors

    def apply(self, limits: Limits, relays: Collection[Side]) -> None:
        """Put `limits` in force. Connections that stand stay."""
        self.fetch_memory.limit = max(DEFAULT_FETCH_MEMORY, limits.fetch_request_max_bytes)
        for relay in relays:
            relay.fetch_size_limit = limits.fetch_request_max_bytes
            relay.connect_seconds = limits.connect_timeout_seconds
            relay.handshakes.seconds = limits.tls_handshake_seconds
            relay.first_requests.seconds = limits.first_request_seconds
        self.admission.most = limits.max_connections
        self.admission.most_from_address = limits.max_connections_per_address
        needed = descriptors_for(limits.max_connections)
        if self._descriptors is not None and self._descriptors < needed:
            self.admission.most = connections_with(self._descriptors)
            self._log.warning(
                "too_few_open_files",
                reason=f"limits.max_connections is {limits.max_connections}, and each connection takes two open files",
                allowed=self._descriptors,
                needed=needed,
                effect=f"at most {self.admission.most} connections are let in; ulimit -n or LimitNOFILE= allows more",
            )
