# SPDX-License-Identifier: Apache-2.0
"""Whether each route's upstream is there and answers, also while nobody connects through the route.

What is asked is ApiVersions, or a TLS greeting where the listener has TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weir.protocol.metadata import encode_api_versions_request
from weir.proxy.admin.exposition import Family, gauge
from weir.proxy.cluster.channel import CLIENT_ID, answers_tls
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.config.address import Address
from weir.proxy.listeners import fixed_upstream
from weir.proxy.log import EventLog, innermost_frame, os_error_reason
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.transport import connect
from weir.proxy.tls.live_keys import TlsClient

PROBE_TIMEOUT_SECONDS = 1.0
CACHE_SECONDS = 1.0

_API_VERSIONS = encode_api_versions_request(0, CLIENT_ID)
"""Brokers answer it before authentication, so it needs no credentials."""

_WHAT: Final = "upstream"
_READ_BYTES: Final = 65536

LOOK_SECONDS: Final = 10.0


@dataclass(eq=False)
class UpstreamWatch:
    """Looks every LOOK_SECONDS, from `start` to `close`, whether upstreams are there. `clock` gives monotonic seconds.

    - `brokers`, of the ingress routes, are asked over new connections, as it has to be found out whether they accept
      any: in each look, so that readiness is known without waiting, and by `failures`, at most once in CACHE_SECONDS.
      `tls` has the TLS that is used with some of them. A bare connection is something that a TLS listener would log.
    - The peers of egress routes are there while a link to them is open. While none is, they are connected to; a peer's
      ingress counts such a connection as silent.
    """

    brokers: Collection[Address]
    _listeners: Sequence[Listener]
    _log: EventLog
    _clock: Callable[[], float] = time.monotonic
    _stats: PollStats = field(default_factory=PollStats)
    tls: Mapping[Address, TlsClient] = field(default_factory=dict)
    _failures: dict[Address, str | None] = field(default_factory=dict)
    """By the last look: a sentence about each upstream that was not there, None for the others."""
    _asked_at: float = -math.inf
    _speaks_tls: set[Address] = field(default_factory=set)  # of those where TLS passes as it is
    _moved: dict[Address, int] = field(default_factory=dict)  # bytes of the question under way, without those of TLS
    _idle_since: dict[Listener, float] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _running: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._stats.known(_WHAT)

    def start(self) -> None:
        """Begin to look at the upstreams, in a task of its own."""
        self._running = asyncio.create_task(self._run())

    def close(self) -> None:
        """Stop trying upstreams."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    async def failures(self) -> list[str]:
        """Return one sentence for each broker that does not answer."""
        async with self._lock:
            if self._clock() - self._asked_at >= CACHE_SECONDS:
                await asyncio.gather(*map(self._ask, self.brokers))
                self._asked_at = self._clock()
            return self.last_failures or []

    @property
    def last_failures(self) -> list[str] | None:
        """What `failures` returned last; None before the first look."""
        if not all(broker in self._failures for broker in self.brokers):
            return None
        return [failure for broker in self.brokers if (failure := self._failures[broker]) is not None]

    async def check(self) -> None:
        """Look once at all routes."""
        peers: dict[Address, Upstream] = {}
        in_use: set[Address] = set()
        for listener, upstream in self._routes():
            if upstream.address not in self.brokers:
                peers[upstream.address] = upstream
            if listener.links:
                in_use.add(upstream.address)
                self._idle_since.pop(listener, None)
            else:
                self._idle_since.setdefault(listener, self._clock())
        tried = (self._try(peer, is_there=address in in_use) for address, peer in peers.items())
        await asyncio.gather(self.failures(), *tried)

    def status(self, listener: Listener) -> dict[str, Any]:
        """Return a route's state as plain JSON values; seconds without a link are exact to LOOK_SECONDS."""
        links, since = len(listener.links), self._idle_since.get(listener)
        idle = 0.0 if links or since is None else self._clock() - since
        found: dict[str, Any] = {"links": links, "no_link_for_seconds": round(idle, 1)}
        upstream = fixed_upstream(listener)
        if upstream is not None and (links or upstream.address in self._failures):
            failure = None if links else self._failures[upstream.address]
            found |= {"upstream_up": failure is None, "upstream_failure": failure}
        return found

    def families(self) -> Iterator[Family]:
        """Yield the metric families of the upstreams."""
        up: dict[tuple[str, str, str], int] = {}
        for listener, upstream in self._routes():
            status = self.status(listener)
            if "upstream_up" in status:
                peer = "" if upstream.peer is None else str(upstream.peer)
                labels = listener.side.stats.side, str(upstream), peer
                up[labels] = max(int(status["upstream_up"]), up.get(labels, 0))
        yield gauge(
            "weir_upstream_up",
            "Whether a route's upstream is there: a link to it is open, or it was reached in the last 10 s.",
            list(up.items()),
            "side upstream peer",
        )

    def _routes(self) -> Iterator[tuple[Listener, Upstream]]:
        for listener in self._listeners:
            upstream = fixed_upstream(listener)
            if upstream is not None:
                yield listener, upstream

    async def _try(self, peer: Upstream, *, is_there: bool) -> None:
        self._note(peer.address, None if is_there else await _failure_of(peer, _connects(peer)), peer.peer)

    async def _ask(self, broker: Address) -> None:
        begin = self._clock()
        failure = await _failure_of(broker, self._answers(broker))
        result = "ok" if failure is None else "failed"
        self._stats.count(_WHAT, result, self._clock() - begin, self._moved.pop(broker, 0))
        self._note(broker, failure)

    def _note(self, upstream: Address, failure: str | None, peer: int | None = None) -> None:
        before = self._failures.get(upstream)
        self._failures[upstream] = failure
        if failure is not None and before is None:
            self._log.warning("upstream_down", upstream=upstream, peer=peer, reason=failure)
        elif failure is None and before is not None:
            self._log.info("upstream_up", upstream=upstream, peer=peer)

    async def _answers(self, address: Address) -> bool:
        if address in self.tls:
            return await self._answers_api_versions(address)
        if address not in self._speaks_tls and await self._answers_api_versions(address):
            return True
        # a TLS listener closes the connection on plaintext
        speaks_tls = await answers_tls(address)
        (self._speaks_tls.add if speaks_tls else self._speaks_tls.discard)(address)
        return speaks_tls

    async def _answers_api_versions(self, address: Address) -> bool:
        tls: dict[str, Any] = {}
        if (secured := self.tls.get(address)) is not None:
            tls = {"ssl": secured.keys.keys.context, "server_hostname": secured.server_name or address.host}
        reader, writer = await asyncio.open_connection(address.host, address.port, **tls)
        try:
            writer.write(_API_VERSIONS)
            with contextlib.suppress(ConnectionError):
                answer = await reader.read(_READ_BYTES)
                self._moved[address] = len(_API_VERSIONS) + len(answer)
                return bool(answer)
            return False
        finally:
            writer.transport.abort()

    async def _run(self) -> None:
        while True:
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - a bug in one look may not end all later ones
                self._log.error("upstream_look_failed", error=repr(error), at=innermost_frame(error))
            await asyncio.sleep(LOOK_SECONDS)


async def _failure_of(upstream: object, answers: Awaitable[bool]) -> str | None:
    """Await whether an upstream answers. Returns why it does not, in a sentence; None where it does."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            return None if await answers else f"upstream {upstream} closes connections without an answer"
    except TimeoutError:
        return f"upstream {upstream} did not answer within {PROBE_TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return f"upstream {upstream} cannot be reached: {os_error_reason(error)}"


async def _connects(upstream: Upstream) -> bool:
    (await connect(upstream.address, upstream.mark)).close()
    return True
