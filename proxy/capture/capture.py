# SPDX-License-Identifier: Apache-2.0
"""Puts a sidecar into the connections between brokers, and takes it out of them again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Any, Final

from weir.lag.broker_ids import NO_BROKER
from weir.proxy.capture.nftables import Nftables, NftError, PacketFilter, make_transparent, original_destination
from weir.proxy.capture.pause import Pause
from weir.proxy.capture.requirements import CaptureError, check_machine, drop_connections
from weir.proxy.capture.rules import ALIVE_SECONDS, CaptureRules, mark_of, table_names
from weir.proxy.capture.tls_trial import TlsTrial
from weir.proxy.capture.tracking import Tracking, rule_events
from weir.proxy.config.address import Address, IPAddress, numeric_address
from weir.proxy.config.keys import RouteKeys, RouteTls
from weir.proxy.config.tables import CaptureTable
from weir.proxy.log import EventLog
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.replica_sources import Addresses, ReplicaSources
from weir.proxy.relay.side import Side
from weir.proxy.relay.stand_in import stand_ins
from weir.proxy.slices import stopped, wait_at_most
from weir.quota.settings import SideName

REFRESH_SECONDS: Final = ALIVE_SECONDS / 5
_LISTEN: Final = {4: Address("0.0.0.0", 0), 6: Address("::", 0)}  # noqa: S104 - a redirect leads to any address

DropConnections = Callable[..., str | None]


@dataclass(eq=False, repr=False)
class Capture:
    """One sidecar's capture, from `listen` to `close`.

    - It is in the path while the brokers' addresses are known and, with `when` "throttled", a throttle is in force.
    - It goes in by breaking the connections that stand, once: whoever had one comes back through the sidecar. So it
      does with the connections of a broker whose address it learns later.
    - With TLS that ends here it stays out, or steps out, where followers could not have TLS with it (TlsTrial).
    - While it is paused it is out of the path.
    - It steps out by letting new connections pass beside it, and closing those it carries between two requests.

    `keys` has the TLS that it uses. `_open_filter` and `_drop` are the kernel's and requirements.drop_connections, but
    for tests.
    """

    settings: CaptureTable
    _broker_id: int
    _sides: Mapping[SideName, Side]
    _log: EventLog
    _open_filter: Callable[[], PacketFilter] | None = None
    _drop: DropConnections = drop_connections
    _: KW_ONLY
    keys: InitVar[RouteKeys | None] = None
    clock: InitVar[Callable[[], float]] = time.monotonic
    listeners: list[Listener] = field(default_factory=list)
    is_in: bool = False
    """Whether new connections are captured."""
    _sources: ReplicaSources = field(default_factory=lambda: ReplicaSources(None))
    _filter: PacketFilter | None = None
    _rules: CaptureRules | None = None
    _tracking: Tracking | None = None
    _tracks_others: bool = True
    _is_transparent: bool = True
    _has_table: bool = False
    _has_addresses: bool = False
    _dropped: set[IPAddress] = field(default_factory=set)  # the peers whose direct connections were broken
    _own: frozenset[IPAddress] = frozenset()
    _peers: dict[IPAddress, int] = field(default_factory=dict)
    _is_throttled: bool = False
    _failure: str | None = None
    _running: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _turned: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, keys: RouteKeys | None, clock: Callable[[], float]) -> None:
        self._ingress_tls: RouteTls = (None, None) if keys is None else keys.captured_ingress
        self._egress_tls: RouteTls = (None, None) if keys is None else keys.captured_egress
        self._trial = TlsTrial(self._ingress_tls, self._sides["leader"].tls, mark_of(self._broker_id))
        self.pause = Pause(self._changed.set, self._log, clock)

    async def listen(self, inherited: MutableMapping[str, socket.socket] | None = None) -> list[Listener]:
        """Listen for captured connections, on free ports. Raises OSError; CaptureError for what the machine lacks.

        `inherited` are sockets of a process that this one takes over from, by their listeners' names.
        """
        if self._open_filter is None:
            check_machine()
        try:
            self._filter = (self._open_filter or Nftables)()
        except NftError as error:
            raise CaptureError(f"capture needs the kernel's packet filter: {error}") from error
        ports: dict[SideName, dict[int, int]] = {"leader": {}, "follower": {}}
        for side in self.settings.sides:
            for version, address in _LISTEN.items():
                if version == 6 and not _has_ipv6():
                    continue
                is_ingress = side == "leader"
                listener = Listener(
                    self._sides[side],
                    address,
                    self._ingress_upstream if is_ingress else self._egress_upstream,
                    sources=self._sources if is_ingress else None,
                    tls=(self._ingress_tls if is_ingress else self._egress_tls)[0],
                    stand_ins=None if is_ingress else stand_ins(*self._egress_tls, self._sides[side]),
                    prepare=self._prepare if is_ingress else None,
                    name=f"capture {side} {version}",
                )
                await listener.start((inherited or {}).pop(listener.name, None))
                self.listeners.append(listener)
                ports[side][version] = listener.address.port
        settings = self.settings
        self._rules = CaptureRules(
            self._broker_id,
            settings.port,
            ports["leader"],
            ports["follower"],
            settings.from_ == "anyone",
            settings.user,
            self._is_transparent,
            inherited is not None and self._stands_already(self._filter),
        )
        events = rule_events() if self._open_filter is None else None
        tables = [f"inet {name}" for name in table_names(self._broker_id)]
        self._tracking = Tracking(tables, self._open_filter or Nftables, events, self._log)
        self._tracking.watch(self._changed.set)
        return self.listeners

    def _stands_already(self, packet_filter: PacketFilter) -> bool:
        """Whether another process has the table of the first name. One that nobody has is deleted."""
        first = f"inet {table_names(self._broker_id)[0]}"
        with contextlib.suppress(NftError):  # it is not there, as a rule
            packet_filter.run(f"delete table {first}")
            return False
        listed = ""
        with contextlib.suppress(NftError):
            listed = packet_filter.run("list tables inet")
        return f"table {first}" in listed.splitlines()

    def take_over(self, brokers: Addresses, *, is_in: bool) -> None:
        """Begin where another process is in the path: what stands passes it, and is given to this one."""
        self.learn(brokers)
        if is_in:
            self.is_in = True
            self._dropped = set(self._peers)

    async def wait_until_in(self, seconds: float) -> None:
        """Wait until the kernel leads connections here by rules of this process, if it is to, and no longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.is_wanted and not (self.is_in and self._has_addresses):
                    self._turned.clear()
                    await self._turned.wait()

    def start(self) -> None:
        """Begin to capture when it is wanted, and keep the kernel told that this process lives."""
        self._running = asyncio.create_task(self._run())

    def learn(self, brokers: Addresses) -> None:
        """Take the addresses of the cluster's brokers by id."""
        own = brokers.get(self._broker_id, frozenset())
        peers = {
            address: broker
            for broker, addresses in brokers.items()
            for address in addresses
            if broker != self._broker_id and address not in own
        }
        if (own, peers) != (self._own, self._peers):
            self._own, self._peers, self._has_addresses = own, peers, False
            self._changed.set()

    def throttle_changed(self, is_throttled: bool) -> None:
        """Take whether any throttle is in force."""
        self._is_throttled = is_throttled
        self._changed.set()

    def not_ready(self) -> str | None:
        """Return why nothing is captured although it should be."""
        if self._failure is not None:
            return f"nothing is captured: {self._failure}"
        if not self._knows_brokers:
            return "nothing is captured yet: the cluster has not told the brokers' addresses"
        if self._trial.trouble is not None and self.is_wanted:
            return f"nothing is captured: {self._trial.trouble}"
        return None

    def status(self) -> dict[str, Any]:
        """Return whether new connections are captured, and whether it is paused."""
        needed_by = None if self._tracking is None else self._tracking.needed_by
        return {"captured": self.is_in, "all_tracked_for": needed_by, **self.pause.as_plain()}

    async def step_out(self) -> None:
        """Let all new connections pass beside this sidecar from now on; those that stand are the caller's to close."""
        await stopped(self._running)
        self._running = None
        self._leave()

    def close(self) -> None:
        """Take everything out of the kernel. Connections that stand are broken by it."""
        if self._running is not None:
            self._running.cancel()
        self.is_in = False
        self.pause.close()
        if self._tracking is not None:
            self._tracking.close()
            self._tracking = None
        if self._filter is not None:
            self._filter.close()

    @property
    def _knows_brokers(self) -> bool:
        return bool(self._own and self._peers)

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be in the path."""
        is_asked_for = self.pause.lease is None and (self.settings.when == "always" or self._is_throttled)
        return self._knows_brokers and is_asked_for

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not self.is_wanted or not await self._can_stand_in():
                if self.is_in:
                    self._leave()
                for listener in self.listeners:
                    listener.drain_links()  # each time: some were still being made, with a handshake say, at the last
            elif self._stay():
                await self._break_direct()
            await self._track()
            self._turned.set()
            await wait_at_most(self._changed, REFRESH_SECONDS)

    async def _can_stand_in(self) -> bool:
        """Return whether followers can have TLS with this sidecar as they have it with its broker."""
        trial, broker = self._trial, Address(str(min(self._own, key=str)), self.settings.port)
        before = trial.trouble
        has_links = any(listener.links for listener in self.listeners if listener.sources is not None)
        await trial.check(broker, is_in=self.is_in, has_links=has_links)
        if trial.trouble is not None and trial.trouble != before:
            effect = "connections pass beside weir"
            self._log.fault("not_captured", f"port {self.settings.port}", reason=trial.trouble, effect=effect)
        return trial.trouble is None

    def _stay(self) -> bool:
        """Tell the kernel whom to capture, and that this process lives. Returns whether it took that."""
        rules, packet_filter = self._rules, self._filter
        if rules is None or packet_filter is None:
            return False
        try:
            if not self._has_table:
                with contextlib.suppress(NftError):
                    packet_filter.run(f"delete table {rules.table}")
                self._create(rules, packet_filter)
                self._has_table = self._tracks_others = True
            if not self._has_addresses:
                packet_filter.run(rules.addresses(self._own, self._peers))
                self._has_addresses = True
            packet_filter.run(rules.stay_alive())
        except NftError as error:
            self._failed(str(error))
            return False
        self._failure = None
        return True

    def _create(self, rules: CaptureRules, packet_filter: PacketFilter) -> None:
        try:
            packet_filter.run(rules.create())
        except NftError as error:
            if not rules.transparent:
                raise
            redirecting = replace(rules, transparent=False)
            packet_filter.run(redirecting.create())
            self._rules = redirecting
            effect = "connections are redirected: a firewall has to let in what has `ct status dnat`"
            self._log.warning("tproxy_missing", reason=str(error), effect=effect)

    def _prepare(self, listening: socket.socket) -> None:
        try:
            make_transparent(listening, mark_of(self._broker_id))
        except OSError:
            self._is_transparent = False

    async def _track(self) -> None:
        """Have the kernel track others' connections only where somebody needs that."""
        rules, packet_filter, tracking = self._rules, self._filter, self._tracking
        if rules is None or packet_filter is None or tracking is None or not self._has_table:
            return
        needed = await tracking.look() is not None
        if needed == self._tracks_others:
            return
        try:
            packet_filter.run(rules.track(others=needed))
        except NftError as error:
            self._failed(str(error))
            return
        self._tracks_others = needed

    def _failed(self, reason: str) -> None:
        self._has_table = self._has_addresses = self.is_in = False
        self._dropped.clear()
        self._failure = reason
        self._log.fault("capture_failed", f"port {self.settings.port}", reason=reason, effect="nothing is captured")

    async def _break_direct(self) -> None:
        """Break the connections that passed beside this sidecar before: of all peers, or of those just learnt."""
        fresh = self._peers.keys() - self._dropped
        if self.is_in and not fresh:
            return
        self.is_in = True
        self._dropped |= fresh
        sides = self.settings.sides
        hosts = sorted(map(str, fresh))
        reason = await asyncio.to_thread(
            self._drop, self.settings.port, hosts, incoming="leader" in sides, outgoing="follower" in sides
        )
        self._log.info("captured", port=self.settings.port, peers=len(self._peers), when=self.settings.when)
        if reason is not None:
            effect = "connections that stand stay beside weir until they end by themselves"
            self._log.warning("connections_not_dropped", reason=reason, effect=effect)

    def _leave(self) -> None:
        if not self.is_in or self._rules is None or self._filter is None:
            return
        self.is_in = False
        self._dropped.clear()
        try:
            self._filter.run(self._rules.step_out())
        except NftError as error:
            self._failed(str(error))
            return
        self._log.info("stepped_out", port=self.settings.port, effect="new connections pass beside weir")

    def _ingress_upstream(self, client: socket.socket) -> Upstream | None:
        wanted = self._wanted(client, "leader")
        return None if wanted is None else Upstream(wanted, None, mark_of(self._broker_id), self._ingress_tls[1])

    def _egress_upstream(self, client: socket.socket) -> Upstream | None:
        wanted = self._wanted(client, "follower")
        if wanted is None:
            return None
        address = numeric_address(wanted.host)
        peer = NO_BROKER if address is None else self._peers.get(address, NO_BROKER)
        return Upstream(wanted, peer, mark_of(self._broker_id), self._egress_tls[1])

    def _wanted(self, client: socket.socket, side: SideName) -> Address | None:
        """Return where a captured connection is to go; None for one that was not captured, which would loop."""
        if self._rules is None:
            return None
        ports = self._rules.ingress if side == "leader" else self._rules.egress
        wanted = original_destination(client, ports[6 if client.family == socket.AF_INET6 else 4])
        return None if wanted is None or wanted.port != self.settings.port else wanted


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
