"""Whether an egress can stand in for its peer over TLS. While it cannot, TLS passes as it is: replication goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.log import EventLog
from proxy.tls.ends import TlsClient, TlsServer
from proxy.tls.keys import Keys
from proxy.tls.stats import HandshakeResult

FAILURES: Final = 3
"""So many connections in a row are no chance. A follower that is refused comes back after a second."""

PAUSE_SECONDS: Final = 60.0
"""For how long TLS passes as it is, before one connection tries again."""

_LASTING: Final[tuple[HandshakeResult, ...]] = (
    *("certificate_expired", "unknown_ca", "no_certificate", "wrong_name", "version", "refused_by_peer", "other"),
)
"""How a handshake ends that ends so again. Who is not there, or is slow, may be back with the next connection."""


class StandIn:
    """Counts the connections of one listener whose TLS fails, on either end.

    - `server` and `client` are what the listener uses with the follower and with the upstream.
    - Where the two would have TLS without this sidecar, they have it through it: nobody is trusted who was not before.
    - With new keys the next connection tries again at once.

    `name` is the listener's in the log; `clock` gives monotonic seconds.
    """

    def __init__(
        self, server: TlsServer, client: TlsClient, name: str, log: EventLog, clock: Callable[[], float]
    ) -> None:
        self._server = server
        self._client = client
        self._name = name
        self._log = log
        self._clock = clock
        self._failures = 0
        self._out_until = float("-inf")
        self._failed_with = self._keys

    @property
    def is_out(self) -> bool:
        """Whether TLS of the next connection is to pass as it is."""
        return self._clock() < self._out_until and self._keys == self._failed_with

    def handshake_failed(self, result: HandshakeResult) -> None:
        """Note that a connection has no TLS, on one of its ends."""
        if result in _LASTING:
            self.failed()

    def failed(self) -> None:
        """Note that TLS of a connection failed, and would fail again."""
        if self._keys != self._failed_with:
            self._failures, self._failed_with = 0, self._keys
        self._failures += 1
        if self._failures < FAILURES:
            return
        self._out_until = self._clock() + PAUSE_SECONDS
        reason = f"the last {self._failures} connections failed, see tls_failed and tls_broken"
        effect = f"TLS passes as it is, and no quota counts it; tried again after {PAUSE_SECONDS:g} s"
        self._log.fault("tls_not_ended", self._name, reason=reason, effect=effect)

    def worked(self) -> None:
        """Note that a connection had an answer through TLS on both ends."""
        self._failures = 0

    @property
    def _keys(self) -> tuple[Keys, Keys]:
        return self._server.keys.keys, self._client.keys.keys
