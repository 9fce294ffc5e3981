# SPDX-License-Identifier: Apache-2.0
"""One broker's sidecar: its listeners, its throttles and its admin server, in one event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec

from weir.proxy.admin.access import Access
from weir.proxy.admin.fleet import Fleet
from weir.proxy.admin.http import AdminServer
from weir.proxy.admin.metrics import ProcessStats
from weir.proxy.capture.capture import Capture
from weir.proxy.capture.requirements import CaptureError
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.removed_replicas import RemovedReplicas
from weir.proxy.cluster.view import Takers, Wants
from weir.proxy.cluster.watch import watch_cluster
from weir.proxy.cluster_news import BrokerAddresses, ClusterNews
from weir.proxy.config.address import Address
from weir.proxy.config.client_limits import ClientLimitTable, rules_of
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import SIDES, Config, ThrottleTable
from weir.proxy.config.throttle import settings_of_sides, wants_brokers, wants_facts
from weir.proxy.expiry import Expiry
from weir.proxy.export.exporter import Exporter, Sampled, new_exporter
from weir.proxy.hand_over import Handover, NewProcess, Received
from weir.proxy.layers import Layer
from weir.proxy.limits.gate import LinkGate
from weir.proxy.limits.layers import LimitLayers
from weir.proxy.limits.shares import LimitShares
from weir.proxy.limits.stage import LimitStage
from weir.proxy.listeners import Bounds, ListenError, named, new_listeners, route_status
from weir.proxy.log import EventLog, configure_logging, innermost_frame
from weir.proxy.relay.admission import DESCRIPTORS_EACH, DESCRIPTORS_EACH_WITH_WORKERS
from weir.proxy.relay.listener import Listener
from weir.proxy.relay.replica_sources import Addresses
from weir.proxy.relay.side import Side
from weir.proxy.shares.exchange import Exchange
from weir.proxy.shares.follower_quotas import FollowerQuotas
from weir.proxy.shown import Shown
from weir.proxy.throttle.table import LayeredThrottle, untold_throttle
from weir.proxy.tls.live_keys import KeyWatch
from weir.proxy.tls.results import TlsStats
from weir.proxy.tls_workers.pool import TlsWorkers
from weir.proxy.upstream_watch import UpstreamWatch
from weir.quota.settings import SideName
from weir.quota.throttle import Throttle
from weir.quota.topic_names import TopicNames

RELOADABLE = ("throttle", "quota", "fetch", "limits", "log")
"""The tables of the file that `reload` puts in force; the others need a restart."""

_MOST_NAMED = 10  # the most parts of the throttle that one log line names


class Sidecar:
    """Serves `config` from `start` to `drain`. `version` is for display; `clock` gives monotonic seconds.

    `descriptors` is how many files the process may have open; None: as many as it likes.
    """

    def __init__(
        self,
        config: Config,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        descriptors: int | None = None,
    ) -> None:
        self.config = config
        self.log = EventLog()
        each = DESCRIPTORS_EACH_WITH_WORKERS if config.tls_workers else DESCRIPTORS_EACH
        self._bounds = Bounds(self.log, clock, descriptors, each)
        topic_names = TopicNames(clock)
        self.process = ProcessStats(version, topic_names)
        self.polls = PollStats()
        self._clock = clock
        self.sides: list[Side] = []
        self._route_keys, tls_stats = RouteKeys(config), TlsStats()
        access = Access(
            *(config.admin, clock),
            broker_id=config.broker_id,
            strict_tls=config.strict_tls,
            hosts=self._broker_hosts,
        )
        self.process.admin_refused = access.refused
        watched = self._route_keys.all_keys + list(access.keys.all_keys if access.keys is not None else ())
        self._key_watch = KeyWatch(watched, tls_stats, self.log, self._keys_changed)
        self.tls_workers = TlsWorkers(config.tls_workers, self._route_keys.all_keys, self.log)
        self.process.worker_loads = self.tls_workers.loads
        for side, settings in settings_of_sides(config, config.throttle).items():
            throttle = Throttle(side, config.broker_id, clock, settings, topic_names=topic_names)
            self.sides.append(self._bounds.new_side(throttle, tls_stats, self.tls_workers.open))
        self._by_name: dict[SideName, Side] = {side.throttle.side: side for side in self.sides}
        self._news = ClusterNews(self.sides)
        self.limits = LimitStage(clock, self.log, topic_names.name_of)
        self._limit_shares = LimitShares(self.limits.clients, self._brokers, clock)
        self.client_limits = LimitLayers(self._limit_clients, clock)
        self._limited_by: Sequence[ClientLimitTable] = ()
        self._limits_end = Expiry("limits_expired", self.client_limits, self.process.expired, self.log, clock)
        self.listeners: list[Listener] = []
        self.admin_address: Address | None = None
        self.throttle = LayeredThrottle(config.throttle, self._apply_throttle, clock, config.cluster)
        self._throttle_ends = Expiry("throttle_expired", self.throttle, self.process.expired, self.log, clock)
        upstreams = [route.upstream for route in config.ingress]
        self.upstreams = UpstreamWatch(
            *(dict.fromkeys(upstreams), self.listeners, self.log, clock, self.polls),
            self._route_keys.with_brokers(upstreams),
        )
        self._addresses = BrokerAddresses(self._learn_broker_addresses)
        self._cluster = watch_cluster(
            config,
            topic_names,
            RemovedReplicas([side.throttle for side in self.sides]),
            Wants(
                throttled_topics=self._news.throttled_topics,
                topics_behind=self._news.topics_behind,
                brokers=lambda: (
                    config.capture is not None or bool(self._limited_by) or wants_brokers(self.throttle.table)
                ),
                moves=lambda: wants_facts(self.throttle.table),
            ),
            Takers(
                names_generation=self._news.topic_names,
                in_sync=self._news.in_sync_replicas,
                under_min_isr=self._news.under_min_isr,
                brokers=self._addresses.offer,
                racks=self._news.racks,
                moves=self._news.moves,
                told_lists=self._news.told_lists,
                throttle=self._follow_throttle,
            ),
            self.log,
            self.polls,
            clock,
        )
        tls = None if access.keys is None else access.keys.client_context
        self.fleet = Fleet(config, self._broker_hosts, lambda: self.shown.status(), clock, access.sign, tls)
        self.capture = (
            None
            if config.capture is None
            else Capture(config.capture, config.broker_id, self._by_name, self.log, keys=self._route_keys, clock=clock)
        )
        leader = self.sides[SIDES.index("leader")].throttle
        self._follower_quotas = FollowerQuotas(leader, self._broker_hosts, self._followers_changed, clock)
        shared = (self._follower_quotas, self._limit_shares)
        self.exchange = Exchange(
            config.broker_id, shared, self.fleet.targets, self.log, clock, sign=access.sign, tls=tls
        )
        self.limits.clients.on_group = self.exchange.changed
        self.shown = Shown(
            config,
            clock,
            process=self.process,
            sides=self.sides,
            throttle=self.throttle,
            client_limits=self.client_limits,
            limits=self.limits,
            listeners=self.listeners,
            upstreams=self.upstreams,
            capture=self.capture,
            exchange=self.exchange,
            polls=self.polls,
            key_watch=self._key_watch,
            tls_workers=self.tls_workers,
            fleet=self.fleet,
        )
        self._admin = AdminServer(self.shown, self.log, access)
        admin_name = f"admin {config.admin.listen}"
        self._handover = Handover(
            *(self.sides, self.throttle, self.client_limits, self.limits.clients, self.capture, self.listeners),
            *(self._admin, admin_name),
        )
        self._apply_limits()
        self._exporter: Exporter | None = None
        self._is_prepared = False
        self._known_addresses: Addresses = {}

    async def start(self, received: Received | None = None) -> None:
        """Listen on every address or on none, with what another process has left where it has left something.

        ListenError names the address that is not available; CaptureError says what a capture lacks; ConfigError says
        which of the other process's settings cannot be in force here.
        """
        sockets = {} if received is None else received.sockets
        cluster, capture = self.config.cluster, self.config.capture
        if cluster is not None and cluster.follow_throttles and (capture is None or capture.when == "always"):
            self.throttle.follow(untold_throttle(self._clock()))  # before the first connection
        await self.prepare()
        if received is not None:
            await self._handover.take(received)
        try:
            for route, listener in new_listeners(self.config, self._route_keys, self._by_name, self._clock):
                await self._listen(listener, route, sockets.pop(listener.name, None))
            if self.capture is not None:
                self.listeners += await self.capture.listen(sockets)
                self._tell_capture()
            if received is not None:
                if brokers := self._handover.stand_in(received):
                    self._learn_broker_addresses(brokers)
                received.listens(self.listeners)
            if self.capture is not None:
                self.capture.start()
            with named("admin", self.config.admin.listen):
                listening = sockets.pop(self._handover.admin_name, None)
                self.admin_address = await self._admin.start(self.config.admin.listen, listening)
                self.shown.admin_address = self.admin_address
        except (ListenError, CaptureError):
            await self.close()
            raise
        self.process.load.start()
        self._cluster.start()
        self.shown.history.start()
        self.exchange.start()
        self._key_watch.start()
        self.upstreams.start()
        self._start_export()
        self.shown.state = "serving"

    async def prepare(self) -> None:
        """Do what takes long at a start, and needs nothing of what another process may have left."""
        if not self._is_prepared:
            self._is_prepared = True
            await self.tls_workers.start()
            await self._admin.prepare()

    async def hand_over(self, new: NewProcess) -> bool:
        """Give a new process the listeners, what is in force, and each connection when nothing is in flight on it.

        Returns whether it serves; if not, this one goes on. What cannot be given is drained. Until `close` this capture
        keeps its rules, so that no connection breaks.
        """
        self.shown.state, serves = "handing over", False
        try:
            if await self._handover.offer(new, self._known_addresses):
                self.log.info("handing_over", connections=self.connections, to=new.pid)
                serves = await self._handover.give(new, self.config.limits.drain_seconds)
        finally:
            if not serves:
                self.shown.state = "serving"
                await self._admin.go_on()
        return serves

    async def drain(self) -> None:
        """Stop accepting, and close each connection when nothing is in flight on it, within `limits.drain_seconds`.

        The admin server goes on until `close`, so that readiness shows why no connection is accepted.
        """
        self.shown.state = "draining"
        seconds = self.config.limits.drain_seconds
        self.log.info("draining", connections=self.connections, seconds=seconds)
        if self.capture is not None:
            await self.capture.step_out()
        await asyncio.gather(*(listener.drain(seconds) for listener in self.listeners))

    async def close(self) -> None:
        """Close everything at once. May be called in any state, and more than once."""
        self.shown.state = "closed"
        self.process.load.close()
        self.shown.history.close()
        self._key_watch.close()
        self.upstreams.close()
        self._throttle_ends.close()
        self._limits_end.close()
        await self.exchange.close()
        await self._cluster.close()
        await self._addresses.close()
        for listener in self.listeners:
            listener.abort()
        if self.capture is not None:
            self.capture.close()
        if self._exporter is not None:
            await self._exporter.close()  # after the connections: the last sample then has everything that they moved
        await self.tls_workers.close()
        await self._admin.stop()

    def reload(self, config: Config) -> None:
        """Put the changes in `config` in force that need no restart. One log line names those that need one."""
        old, tables = self.config, [field.name for field in msgspec.structs.fields(Config)]
        changed = [name for name in tables if getattr(old, name) != getattr(config, name)]
        kept = {name: getattr(old, name) for name in tables if name not in RELOADABLE}
        self.config = msgspec.structs.replace(config, **kept)
        if "log" in changed:
            configure_logging(as_json=config.log.json, level=config.log.level)
        self._apply_limits()
        # The file's table replaces everything, also what HTTP has set: one rule, whatever has changed.
        undone = self.throttle.load(config.throttle)
        if undone:
            more = f" and {len(undone) - _MOST_NAMED} more" if len(undone) > _MOST_NAMED else ""
            named = ", ".join(undone[:_MOST_NAMED])
            self.log.warning("http_throttle_undone", parts=named + more, effect="the file's throttle is in force")
        self.process.reloads["ok"] += 1
        self.process.reload_refused = None
        self.log.info(
            "config_reloaded",
            changed=",".join(changed) or "nothing",
            needs_restart=",".join(name for name in changed if name not in RELOADABLE) or "nothing",
            http_settings_replaced=len(undone),
        )

    def reload_refused(self, error: Exception) -> None:
        """Count and log a file that is not put in force. An error that is no ConfigError is a bug."""
        self.process.reloads["refused"] += 1
        self.process.reload_refused = str(error) or type(error).__name__
        if isinstance(error, ConfigError):
            self.log.error("config_refused", error=error, effect="nothing changes")
        else:
            self.log.error("reload_failed", error=repr(error), at=innermost_frame(error))

    def _keys_changed(self) -> None:
        self.tls_workers.keys_changed()
        for listener in self.listeners:
            if listener.stand_ins is not None:
                listener.stand_ins.try_again()

    # Inner workings

    async def _listen(self, listener: Listener, route: str, listening: socket.socket | None) -> None:
        with named(route, listener.address):
            await listener.start(listening)
        self.listeners.append(listener)
        self.log.info("listening", role=route.partition("[")[0], **route_status(listener))

    def _tell_capture(self) -> None:
        if self.capture is not None:
            is_throttled = bool(self._limited_by) or any(side.throttle.settings.throttles for side in self.sides)
            self.capture.throttle_changed(is_throttled)

    def _apply_limits(self) -> None:
        self._bounds.apply(self.config.limits)
        self.client_limits.load(self.config.limits.client)

    def _limit_clients(self, tables: Sequence[ClientLimitTable]) -> None:
        """Put these limits of clients in force, in place of all others. What is held is decided about at once."""
        self._limits_end.watch()
        if tables == self._limited_by:
            return
        self._limited_by, rules = tables, rules_of(tables)
        self.limits.configure(rules)
        self._tell_capture()
        if rules and self.config.cluster is not None:
            self._cluster.ask_now()  # whose sidecars share the limits
        leader = self._by_name["leader"]
        if rules and leader.new_gate is None:
            leader.new_gate = lambda link: LinkGate(self.limits, leader, link)
            for listener in self.listeners:
                for link in listener.links:
                    link.use_gate()

    def _apply_throttle(self, table: ThrottleTable) -> None:
        settings = settings_of_sides(self.config, table, self._follower_quotas.followers)
        for side in self.sides:
            side.throttle.configure(settings[side.throttle.side])
        for side in self.sides:
            side.note_set_by_hand(side.throttle.side in self.throttle.by_hand)
            side.held.wake_now()
        self._tell_capture()
        self._cluster.ask_now()
        self.exchange.changed()
        self._throttle_ends.watch()

    def _followers_changed(self) -> None:
        """Make quotas for followers that were not known before."""
        if wants_brokers(self.throttle.table):
            self._apply_throttle(self.throttle.table)

    def _follow_throttle(self, layer: Layer) -> None:
        self.throttle.follow(layer)
        self.log.info("throttle_changed", by="kafka", **self.throttle.summary())

    def _learn_broker_addresses(self, brokers: Addresses) -> None:
        self._known_addresses = brokers
        for listener in self.listeners:
            if listener.sources is not None:
                listener.sources.learn(brokers)
        if self.capture is not None:
            self.capture.learn(brokers)
        self.shown.network.learn(brokers)
        self._bounds.admission.learn(chain.from_iterable(brokers.values()))
        self.exchange.changed()

    def _start_export(self) -> None:
        config = self.config.export
        if config is None:
            return
        sampled = Sampled(
            broker_id=self.config.broker_id,
            version=self.process.version,
            throttles=[side.throttle for side in self.sides],
            clients=self.limits.clients,
            cluster_id=lambda: self._cluster.view.cluster_id,
            relay=self._by_name["leader"].stats if self.config.ingress or self.config.capture else None,
            clock=self._clock,
        )
        self._exporter = new_exporter(config, sampled, self.process.export, self.log, strict_tls=self.config.strict_tls)
        self._exporter.start()

    def _brokers(self) -> frozenset[int]:
        return frozenset(self._cluster.view.brokers) | {self.config.broker_id}

    def _broker_hosts(self) -> dict[int, str]:
        return {broker_id: broker.host for broker_id, broker in self._cluster.view.brokers.items()}

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return sum(side.stats.connections for side in self.sides)
