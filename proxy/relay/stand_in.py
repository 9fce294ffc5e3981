# SPDX-License-Identifier: Apache-2.0
"""Whether an egress can stand in for a peer over TLS. While it cannot, TLS passes as it is: replication goes on."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.relay.link import Link
from weir.proxy.relay.side import Side
from weir.proxy.tls.keys import Keys
from weir.proxy.tls.live_keys import TlsClient, TlsServer

FAILURES: Final = 3
"""So many connections in a row are no chance. A follower that is refused comes back after a second."""

FAILING_SECONDS: Final = 5.0
"""For so long a client has to fail, the first time. A follower that has TLS comes within that, and then works."""

FIRST_PASS_SECONDS: Final = 1.0
"""For how long TLS passes as it is, before it is tried again; twice as long each time that it fails again, up to"""

LONGEST_PASS_SECONDS: Final = 60.0
"""so long: what passes is not throttled, and each try keeps a follower away for some seconds."""

_MOST_CLIENTS: Final = 1_000


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
class StandIns:
    """Counts the connections of one listener whose TLS fails, on either end, by upstream and by their client's address.

    - Where a follower and the upstream would have TLS without this sidecar, they have it through it: nobody is trusted
      who was not before.
    - What passes is broken after a while, and TLS is tried again: whoever failed may have been somebody else.
    - While a connection to an upstream stands on which TLS is ended and works, others to it that fail change nothing.
    - With new keys the next connection tries again at once.

    `links` are those of the listener that are open; an upstream goes by its name in the log.
    """

    _server: TlsServer
    _client: TlsClient
    _side: Side
    links: set[Link] = field(default_factory=set)
    _failing: OrderedDict[tuple[str, str], _Client] = field(default_factory=OrderedDict)
    _failed_with: tuple[Keys, Keys] = field(init=False)

    def __post_init__(self) -> None:
        self._failed_with = self._keys

    def lets_pass(self, upstream: str, host: str) -> bool:
        """Return whether TLS of a client's new connection is to pass as it is."""
        client = self._failing.get((upstream, host))
        if client is None or not client.passes or self._keys != self._failed_with:
            return False
        if client.end is None:
            client.end = asyncio.get_running_loop().call_later(client.pass_seconds, self._break, upstream, host)
        return True

    def closed(self, link: Link) -> None:
        """Note that a connection has ended, which is not among `links` any more."""
        if _works(link):
            self._failing.pop((link.upstream_name, link.client_host), None)
        elif link.tls_broken:
            self.failed(link.upstream_name, link.client_host)

    def try_again(self) -> None:
        """With other keys than those that failed, break what passes as it is, once: followers come back."""
        if self._keys != self._failed_with:
            for upstream, host in list(self._failing):
                self._break(upstream, host)

    def failed(self, upstream: str, host: str) -> None:
        """Note that TLS failed on one end of a client's connection, as it may again."""
        if any(link.upstream_name == upstream and _works(link) for link in self.links):
            return
        now = self._side.clock()
        if self._keys != self._failed_with:
            self._failing.clear()
            self._failed_with = self._keys
        client = self._failing.setdefault((upstream, host), _Client(now))
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
        self._side.log.fault("tls_not_ended", upstream, client=host, reason=reason, effect=effect)

    def _break(self, upstream: str, host: str) -> None:
        """Break what passes of a client, which then tries TLS again."""
        if (client := self._failing.get((upstream, host))) is not None and client.passes:
            client.passes, client.failures, client.end = False, 0, None
            client.pass_seconds = min(2 * client.pass_seconds, LONGEST_PASS_SECONDS)
        for link in list(self.links):
            if link.connection.opaque_reason == "tls" and (link.upstream_name, link.client_host) == (upstream, host):
                link.close()

    @property
    def _keys(self) -> tuple[Keys, Keys]:
        return self._server.keys.keys, self._client.keys.keys


def stand_ins(server: TlsServer | None, client: TlsClient | None, side: Side) -> StandIns | None:
    """Return those of a follower's listener; None where it does not end TLS and begin it again."""
    return None if server is None or client is None else StandIns(server, client, side)


def _works(link: Link) -> bool:
    """Whether a connection had an answer through TLS that is ended here."""
    return bool(link.relayed.answers) and link.connection.opaque_reason is None
