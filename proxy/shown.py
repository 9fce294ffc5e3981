# SPDX-License-Identifier: Apache-2.0
"""What a sidecar shows over HTTP: whether it is ready, its status, its metrics, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any

import msgspec

from weir.proxy.admin.exposition import render
from weir.proxy.admin.fleet import Fleet
from weir.proxy.admin.history import History
from weir.proxy.admin.limit_metrics import limit_families
from weir.proxy.admin.limited import limited_status
from weir.proxy.admin.metrics import ProcessStats, families
from weir.proxy.admin.status import rate_settings, side_status
from weir.proxy.admin.tls_metrics import tls_families
from weir.proxy.admin.troubles import digest, trouble_families, troubles
from weir.proxy.capture.capture import Capture
from weir.proxy.cluster.poll_stats import PollStats, poll_families
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Config
from weir.proxy.limits.layers import LimitLayers
from weir.proxy.limits.stage import LimitStage
from weir.proxy.listeners import route_status
from weir.proxy.network import Interfaces
from weir.proxy.relay.listener import Listener
from weir.proxy.relay.side import Side
from weir.proxy.shares.exchange import Exchange, share_families
from weir.proxy.throttle.table import LayeredThrottle
from weir.proxy.tls.live_keys import KeyWatch
from weir.proxy.tls_workers.pool import TlsWorkers
from weir.proxy.upstream_watch import UpstreamWatch


@dataclass(eq=False)
class Shown:
    """The parts of one sidecar that it shows: an Administered. `clock` gives monotonic seconds."""

    config: Config
    clock: Callable[[], float]
    _: KW_ONLY
    process: ProcessStats
    sides: Sequence[Side]
    throttle: LayeredThrottle
    client_limits: LimitLayers
    limits: LimitStage
    listeners: Sequence[Listener]
    upstreams: UpstreamWatch
    capture: Capture | None
    exchange: Exchange
    polls: PollStats
    key_watch: KeyWatch
    tls_workers: TlsWorkers
    fleet: Fleet
    state: str = "starting"
    """How far the sidecar's life has come."""
    admin_address: Address | None = None
    """Where its admin server listens; None before it does."""
    history: History = field(init=False)
    network: Interfaces = field(init=False)
    _started_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = self.clock()
        self.history = History(self.sides, self.limits.clients, self.clock)
        self.network = Interfaces(self.config)

    async def not_ready(self) -> list[str]:
        """Return the reasons why this sidecar is not ready, one sentence each; empty when it is ready."""
        failures = await self.upstreams.failures() if self.state == "serving" else None
        return self._not_ready(failures)

    async def status(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        not_ready = await self.not_ready()
        now = self.clock()
        trends = [history.trend(now) for history in self.history.sides]
        return {
            "version": self.process.version,
            "broker_id": self.config.broker_id,
            "state": self.state,
            "ready": not not_ready,
            "not_ready": not_ready,
            "uptime_seconds": round(self.clock() - self._started_at, 1),
            "admin": str(self.admin_address),
            "event_loop": self.process.load.as_plain(),
            "troubles": self.troubles(),
            "digests": self._digests(),
            "topic_ids_unknown": self.process.topic_names.unknown_count,
            "routes": [route_status(listener) | self.upstreams.status(listener) for listener in self.listeners],
            "fleet": self.fleet.is_known,
            "network": self.network.status(),
            **({} if self.capture is None else {"capture": self.capture.status()}),
            "hidden_by_http": self.throttle.hidden_by_http(),
            "settings": rate_settings(self.throttle.effective, now),
            "sides": {
                side.throttle.side: await side_status(side, trend)
                for side, trend in zip(self.sides, trends, strict=True)
            },
            **({"limits": await limited_status(self.limits.clients)} if self.client_limits.tables else {}),
        }

    def metrics(self, accept: str) -> Iterator[bytes]:
        """Yield the metrics in slices, without waiting: whether the sidecar is ready is what the last look told."""
        self.process.is_ready = not self._not_ready(self.upstreams.last_failures)
        if self.capture is not None:
            self.process.is_captured = self.capture.is_in
        polled = poll_families(self.polls, self.clock())
        limited, shares = limit_families(self.limits), share_families(self.exchange)
        watched = self.key_watch
        secured = tls_families(watched.stats, watched.seconds_left(), self.tls_workers) if watched.all_keys else ()
        sides = families(self.sides, self.process, by_partition=self.config.admin.partition_series)
        own = chain(sides, self.upstreams.families(), trouble_families(self.troubles(), self._digests()))
        return render(chain(own, limited, polled, shares, secured), accept)

    def troubles(self) -> dict[str, str]:
        """Return what is wrong with this sidecar itself, a sentence by its kind."""
        paused = None if self.capture is None else self.capture.pause.sentence()
        return troubles(self.process, captures=self.capture is not None, paused=paused)

    def pause_capture(self, asked: object | None) -> dict[str, Any]:
        """Step out of the path until the lease that is `asked` for ends, or back in (None). Returns what holds then.

        ConfigError: nothing is captured here, or the lease cannot be read.
        """
        if self.capture is None:
            raise ConfigError("capture", "is not set: this sidecar listens, and only its end takes it out of the path")
        pause = self.capture.pause
        pause.end() if asked is None else pause.begin(asked)
        return pause.as_plain()

    def answer_about_shares(self, body: bytes) -> msgspec.Struct:
        """Answer another sidecar with which a rate is shared; ConfigError."""
        return self.exchange.answer(body)

    def _not_ready(self, failures: list[str] | None) -> list[str]:
        """Return the reasons, with what is known of the upstreams; None: nothing yet."""
        if self.state != "serving":
            return [f"the sidecar is {self.state}"]
        not_captured = self.capture.not_ready() if self.capture is not None else None
        reasons = ["the upstreams are being asked for the first time"] if failures is None else failures
        return reasons if not_captured is None else [*reasons, not_captured]

    def _digests(self) -> dict[str, str]:
        return {"limits": digest(self.client_limits.tables), "quotas": digest(self.throttle.table.quotas)}
