"""Whether an egress can stand in for a peer over TLS. While it cannot, TLS passes as it is: replication goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import OpenLink
from weir.proxy.tls.ends import TlsClient, TlsServer
from weir.proxy.tls.keys import Keys
from weir.proxy.tls.stats import HandshakeResult

FAILURES: Final = 3
"""So many connections in a row are no chance. A follower that is refused comes back after a second."""

PAUSE_SECONDS: Final = 60.0
"""For how long TLS passes as it is, before one connection tries again."""

_LASTING: Final[tuple[HandshakeResult, ...]] = (
    *("certificate_expired", "unknown_ca", "no_certificate", "wrong_name", "not_strict"),
    *("version", "refused_by_peer", "other"),
)
"""How a handshake ends that ends so again. Who is not there, or is slow, may be back with the next connection."""


class SecuredLink(OpenLink, Protocol):
    """A link between a follower and a peer that this sidecar stands in for."""

    @property
    def tls_broken(self) -> bool:
        """Whether it ended as TLS failed on one of its ends."""

    def close(self) -> None:
        """Close both connections at once."""


class StandIns:
    """Those of one listener, by upstream. `server` and `client` are the TLS that it has with both ends."""

    def __init__(self, server: TlsServer, client: TlsClient, log: EventLog, clock: Callable[[], float]) -> None:
        self._server = server
        self._client = client
        self._log = log
        self._clock = clock
        self._by_upstream: dict[Address, StandIn] = {}

    def of(self, upstream: Address) -> StandIn:
        """Return the one for an upstream."""
        if upstream not in self._by_upstream:
            self._by_upstream[upstream] = StandIn(self._server, self._client, str(upstream), self._log, self._clock)
        return self._by_upstream[upstream]

    def try_again(self) -> None:
        """Have all try TLS again that failed with other keys."""
        for stand_in in self._by_upstream.values():
            stand_in.try_again()


def stand_ins(server: TlsServer | None, client: TlsClient | None, relay: Side) -> StandIns | None:
    """Return those of a follower's listener; None where it does not end TLS and begin it again."""
    return None if server is None or client is None else StandIns(server, client, relay.log, relay.clock)


class StandIn:
    """Counts the connections to one upstream whose TLS fails, on either end.

    - Where the follower and the upstream would have TLS without this sidecar, they have it through it: nobody is
      trusted who was not before.
    - While a connection stands on which TLS is ended and works, others that fail change nothing.
    - With new keys the next connection tries again at once.

    `name` is the upstream's in the log; `clock` gives monotonic seconds.
    """

    def __init__(
        self, server: TlsServer, client: TlsClient, name: str, log: EventLog, clock: Callable[[], float]
    ) -> None:
        self._server = server
        self._client = client
        self._name = name
        self._log = log
        self._clock = clock
        self._links: set[SecuredLink] = set()
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
            self._failed()

    def opened(self, link: SecuredLink) -> None:
        """Note that a connection stands."""
        self._links.add(link)

    def closed(self, link: SecuredLink) -> None:
        """Note that a connection has ended."""
        self._links.discard(link)
        if _works(link):
            self._failures = 0
        elif link.tls_broken:
            self._failed()

    def try_again(self) -> None:
        """With other keys than those that failed, break what passes as it is, once: followers come back."""
        if self._keys == self._failed_with:
            return
        for link in list(self._links):
            if link.opaque_reason == "tls":
                link.close()

    def _failed(self) -> None:
        if any(map(_works, self._links)):
            return
        if self._keys != self._failed_with:
            self._failures, self._failed_with = 0, self._keys
        self._failures += 1
        if self._failures < FAILURES:
            return
        self._out_until = self._clock() + PAUSE_SECONDS
        reason = f"the last {self._failures} connections failed, see tls_failed and tls_broken"
        effect = f"TLS passes as it is, and no quota counts it; tried again after {PAUSE_SECONDS:g} s"
        self._log.fault("tls_not_ended", self._name, reason=reason, effect=effect)

    @property
    def _keys(self) -> tuple[Keys, Keys]:
        return self._server.keys.keys, self._client.keys.keys


def _works(link: SecuredLink) -> bool:
    """Whether a connection had an answer through TLS that is ended here."""
    return bool(link.relayed.answers) and link.opaque_reason is None
