"""Whether an egress can stand in for a peer over TLS. While it cannot, TLS passes as it is: replication goes on."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.proxy.relay.link import Link
from weir.proxy.relay.side import Side
from weir.proxy.tls.keys import Keys
from weir.proxy.tls.live_keys import TlsClient, TlsServer
from weir.proxy.tls.results import LASTING_FAILURES, HandshakeResult

FAILURES: Final = 3
"""So many connections in a row are no chance. A follower that is refused comes back after a second."""

FAILING_SECONDS: Final = 5.0
"""For so long a client has to fail, the first time. A follower that has TLS comes within that, and then works."""

FIRST_PASS_SECONDS: Final = 1.0
"""For how long TLS passes as it is, before it is tried again; twice as long each time that it fails again, up to"""

LONGEST_PASS_SECONDS: Final = 60.0
"""so long: what passes is not throttled, and each try keeps a follower away for some seconds."""

_MOST_CLIENTS: Final = 1_000


@dataclass(eq=False, slots=True)
class StandIns:
    """Those of one listener, by upstream. `server` and `client` are the TLS that it has with both ends."""

    _server: TlsServer
    _client: TlsClient
    _log: EventLog
    _clock: Callable[[], float]
    _by_upstream: dict[Address, StandIn] = field(default_factory=dict)

    def of(self, upstream: Address) -> StandIn:
        """Return the one for an upstream."""
        if upstream not in self._by_upstream:
            self._by_upstream[upstream] = StandIn(self._server, self._client, str(upstream), self._log, self._clock)
        return self._by_upstream[upstream]

    def try_again(self) -> None:
        """Have all try TLS again that failed with other keys."""
        for stand_in in self._by_upstream.values():
            stand_in.try_again()


def stand_ins(server: TlsServer | None, client: TlsClient | None, side: Side) -> StandIns | None:
    """Return those of a follower's listener; None where it does not end TLS and begin it again."""
    return None if server is None or client is None else StandIns(server, client, side.log, side.clock)


@dataclass(slots=True)
class _Client:
    """A client's address, from which TLS fails."""

    since: float
    """When it began to fail (clock seconds)."""
    failures: int = 0
    passes: bool = False
    """Whether TLS of its next connection passes."""
    pass_seconds: float = FIRST_PASS_SECONDS
    """For how long that goes on, from the first such connection on."""
    end: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class StandIn:
    """Counts the connections to one upstream whose TLS fails, on either end, by their clients' addresses.

    - Where a follower and the upstream would have TLS without this sidecar, they have it through it: nobody is trusted
      who was not before.
    - What passes is broken after a while, and TLS is tried again: whoever failed may have been somebody else.
    - While a connection stands on which TLS is ended and works, others that fail change nothing.
    - With new keys the next connection tries again at once.

    `name` is the upstream's in the log; `clock` gives monotonic seconds.
    """

    _server: TlsServer
    _client: TlsClient
    _name: str
    _log: EventLog
    _clock: Callable[[], float]
    _links: set[Link] = field(default_factory=set)
    _failing: OrderedDict[str, _Client] = field(default_factory=OrderedDict)
    _failed_with: tuple[Keys, Keys] = field(init=False)

    def __post_init__(self) -> None:
        self._failed_with = self._keys

    def lets_pass(self, host: str) -> bool:
        """Return whether TLS of a client's new connection is to pass as it is."""
        client = self._failing.get(host)
        if client is None or not client.passes or self._keys != self._failed_with:
            return False
        if client.end is None:
            client.end = asyncio.get_running_loop().call_later(client.pass_seconds, self._break, host)
        return True

    def handshake_failed(self, result: HandshakeResult, host: str) -> None:
        """Note that a client's connection has no TLS, on one of its ends."""
        if result in LASTING_FAILURES:
            self._failed(host)

    def opened(self, link: Link) -> None:
        """Note that a connection stands."""
        self._links.add(link)

    def closed(self, link: Link) -> None:
        """Note that a connection has ended."""
        self._links.discard(link)
        if _works(link):
            self._failing.pop(link.client_host, None)
        elif link.tls_broken:
            self._failed(link.client_host)

    def try_again(self) -> None:
        """With other keys than those that failed, break what passes as it is, once: followers come back."""
        if self._keys != self._failed_with:
            for host in list(self._failing):
                self._break(host)

    def _failed(self, host: str) -> None:
        if any(map(_works, self._links)):
            return
        now = self._clock()
        if self._keys != self._failed_with:
            self._failing.clear()
            self._failed_with = self._keys
        client = self._failing.setdefault(host, _Client(now))
        if len(self._failing) > _MOST_CLIENTS:
            self._failing.popitem(last=False)
        client.failures += 1
        is_new = client.pass_seconds == FIRST_PASS_SECONDS
        if client.passes or client.failures < FAILURES or (is_new and now - client.since < FAILING_SECONDS):
            return
        client.passes = True
        seconds = client.pass_seconds
        reason = f"the last {client.failures} connections from there failed, see tls_failed and tls_broken"
        effect = (
            f"TLS from there passes as it is, and no quota counts it; it is broken and tried again after {seconds:g} s"
        )
        self._log.fault("tls_not_ended", self._name, client=host, reason=reason, effect=effect)

    def _break(self, host: str) -> None:
        """Break what passes of a client, which then tries TLS again."""
        if (client := self._failing.get(host)) is not None and client.passes:
            client.passes, client.failures, client.end = False, 0, None
            client.pass_seconds = min(2 * client.pass_seconds, LONGEST_PASS_SECONDS)
        for link in list(self._links):
            if link.opaque_reason == "tls" and link.client_host == host:
                link.close()

    @property
    def _keys(self) -> tuple[Keys, Keys]:
        return self._server.keys.keys, self._client.keys.keys


def _works(link: Link) -> bool:
    """Whether a connection had an answer through TLS that is ended here."""
    return bool(link.relayed.answers) and link.opaque_reason is None
