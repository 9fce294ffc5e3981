"""Whether each route's upstream is there, also while nobody connects through the route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weir.proxy.admin.exposition import Family, gauge
from weir.proxy.cluster.upstream_probe import PROBE_TIMEOUT_SECONDS, UpstreamProbe
from weir.proxy.config.address import Address
from weir.proxy.listeners import fixed_upstream
from weir.proxy.log import EventLog, innermost_frame, os_error_reason
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.transport import connect

LOOK_SECONDS: Final = 10.0


@dataclass(eq=False)
class UpstreamWatch:
    """Looks at `listeners` every LOOK_SECONDS, from `start` to `close`. `clock` gives monotonic seconds.

    An upstream is there while a link to it is open. While none is, an egress route's is connected to; a peer's ingress
    counts such a connection as silent. For an ingress route's what `probe` found counts: a broker's TLS listener would
    log a bare connection. `probe` is asked in each look, so that readiness is known without waiting for it.
    """

    _listeners: Sequence[Listener]
    probe: UpstreamProbe
    _log: EventLog
    _clock: Callable[[], float]
    _failures: dict[Address, str | None] = field(default_factory=dict)
    _idle_since: dict[Listener, float] = field(default_factory=dict)
    _running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._running = asyncio.create_task(self._run())

    def close(self) -> None:
        """Stop trying upstreams."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    async def check(self) -> None:
        """Look once at all routes."""
        now, idle = self._clock(), {}
        for listener, upstream in self._routes():
            if listener.links:
                self._idle_since.pop(listener, None)
                self._note(upstream, None)
            else:
                self._idle_since.setdefault(listener, now)
                idle[upstream.address] = upstream
        in_use = {upstream.address for listener, upstream in self._routes() if listener.links}
        asked = [upstream for address, upstream in idle.items() if address not in in_use]
        await asyncio.gather(self.probe.failures(), *map(self._ask, asked))

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

    async def _ask(self, upstream: Upstream) -> None:
        if upstream.peer is None:
            await self.probe.failures()
            self._note(upstream, self.probe.failure_of(upstream.address))
            return
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                (await connect(upstream.address, upstream.mark)).close()
        except TimeoutError:
            self._note(upstream, f"upstream {upstream} did not answer within {PROBE_TIMEOUT_SECONDS:g} s")
        except OSError as error:
            self._note(upstream, f"upstream {upstream} cannot be reached: {os_error_reason(error)}")
        else:
            self._note(upstream, None)

    def _note(self, upstream: Upstream, failure: str | None) -> None:
        before = self._failures.get(upstream.address)
        self._failures[upstream.address] = failure
        if failure is not None and before is None:
            self._log.warning("upstream_down", upstream=upstream, peer=upstream.peer, reason=failure)
        elif failure is None and before is not None:
            self._log.info("upstream_up", upstream=upstream, peer=upstream.peer)

    async def _run(self) -> None:
        while True:
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - a bug in one look may not end all later ones
                self._log.error("upstream_look_failed", error=repr(error), at=innermost_frame(error))
            await asyncio.sleep(LOOK_SECONDS)
