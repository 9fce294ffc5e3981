# SPDX-License-Identifier: Apache-2.0
"""Hands a sidecar over to a new process of it: its listeners, its connections, what HTTP has set, and what is owed.

The new process may be another version of weir. The old one starts it, and tells it nothing before it has read its file.
It then gives it what is in force and the sockets that listen, and keeps them until the new one has put all of it in
force. Connections follow one by one, each between two requests. Until the new one says that it serves, the old one can
go on: it accepts again, and only connections that were given already have to be made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from weir.limits.clients import Clients, Owed
from weir.proxy.admin.http import AdminServer
from weir.proxy.capture.capture import Capture
from weir.proxy.config.address import Address, numeric_address
from weir.proxy.expiry import Setting
from weir.proxy.limits.layers import LimitLayers
from weir.proxy.relay.link import Link
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.relay.open_link import HandedOver
from weir.proxy.relay.replica_sources import Addresses
from weir.proxy.relay.side import Side
from weir.proxy.slices import stopped
from weir.proxy.throttle.table import LayeredThrottle
from weir.proxy.tls_workers.channel import ProcessChannel
from weir.quota.budget.quota import QuotaState
from weir.quota.settings import SideName

DESCRIPTOR: Final = "WEIR_TAKE_OVER"
"""The variable that tells a new process which descriptor leads to the old one.

Versions that speak otherwise have a variable of another name: the new process then fails to start, as the addresses are
taken, and the old one goes on.
"""

READY_SECONDS: Final = 60.0
"""How long a new process may take to read its file."""

IN_PATH_SECONDS: Final = 5.0
"""How long it may take to be in the path after it has everything."""

_SERVES_SECONDS: Final = 2 * IN_PATH_SECONDS


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """How far the hand-over has come.

    - `ready`: the new process takes what comes.
    - `given`: the old process has given what is in force, and all sockets that listen.
    - `took`: the new process has put that in force, and listens.
    - `ended`: the old process has no link any more.
    - `serves`: the new process is where the old one was.
    """

    what: Literal["ready", "given", "took", "ended", "serves"]


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """What is in force in the old process, and what it knows of the cluster.

    `throttle` and `limits` are what HTTP has set; `pause` is the body that began a pause of the capture.
    """

    throttle: list[Setting] = []
    limits: list[Setting] = []
    brokers: dict[int, list[str]] = {}
    is_captured: bool = False
    pause: dict[str, Any] | None = None


class Debts(msgspec.Struct, frozen=True, kw_only=True, tag="debts"):
    """What quotas and limited clients owe, by side and quota. Told again, it adds what has come since."""

    sides: dict[SideName, dict[str, QuotaState]] = {}
    clients: list[Owed] = []


class Listens(msgspec.Struct, frozen=True, tag="listens"):
    """A socket that listens, by its listener's name."""

    name: str


class CarriedLink(msgspec.Struct, frozen=True, kw_only=True, tag="link"):
    """A link: its client's connection, and the one to its upstream."""

    listener: str
    host: str
    upstream: str
    peer: int | None = None
    before: HandedOver = HandedOver()


_Given: TypeAlias = State | Debts | Listens | CarriedLink | Reached


def own_command() -> list[str]:
    """Return what starts this program again: what its name leads to now, which may be another version."""
    name = sys.argv[0]
    is_program = os.access(name, os.X_OK) and not name.endswith(".py")
    return [name, *sys.argv[1:]] if is_program else [sys.executable, *sys.orig_argv[1:]]


class NewProcess:
    """The new process, as the old one sees it. `close` ends it, unless it serves.

    Raises OSError where it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name != "WATCHDOG_PID"}
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - this program
                    command, pass_fds=(theirs.fileno(),), env={**environment, DESCRIPTOR: str(theirs.fileno())}
                )
        except OSError:
            ours.close()
            raise
        self._events = {what: asyncio.Event() for what in ("ready", "took", "serves")}
        self._ended = asyncio.Event()
        self._channel: ProcessChannel[Reached] = ProcessChannel(ours, Reached, self._received, self._ended.set)

    @property
    def pid(self) -> int:
        """The new process's id."""
        return self._process.pid

    async def has_reached(self, what: str, seconds: float = math.inf) -> bool:
        """Wait until it has come so far, has ended, or the time is over. Returns whether it has come so far."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._events[what], self._ended)]
        timeout = None if seconds == math.inf else seconds
        _, unfinished = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in unfinished:
            task.cancel()
        return self._events[what].is_set() and not self._ended.is_set()

    def tell(self, message: _Given, *descriptors: int) -> None:
        """Give it a message, and descriptors that it then has, too."""
        if self._channel.is_open:
            self._channel.give(message, descriptors)

    def take(self, listener: Listener, link: Link, before: HandedOver) -> None:
        """Give it a link on which nothing is in flight."""
        host, upstream, peer = link.client_host, link.upstream_name, link.connection.fetches.peer
        told = CarriedLink(listener=listener.name, host=host, upstream=upstream, peer=peer, before=before)
        self.tell(told, *link.descriptors)

    def close(self) -> None:
        """Close the way to it. Unless it serves, kill it: the old process goes on alone."""
        self._channel.close()
        if not self._events["serves"].is_set():
            self._process.kill()
            self._process.wait()
        self._process.returncode = 0  # it goes on by itself: nobody is to wait for it

    def _received(self, message: Reached, descriptors: list[int]) -> None:
        self._events[message.what].set()


@dataclass(eq=False, slots=True)
class Received:
    """What a new process begins with.

    - `sockets`: those that listen, by name. A listener removes its own; what is left at the end has no listener.
    - `listens`: to be called with the listeners once they listen. They then get the links, as these come.
    - `owes`: to be called with what puts debts in force. It is called as these come.
    """

    listens: Callable[[Sequence[Listener]], None]
    owes: Callable[[Callable[[Debts], None]], None]
    state: State = field(default_factory=State)
    sockets: dict[str, socket.socket] = field(default_factory=dict)


class OldProcess:
    """The old process, as the new one sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._given = Received(self._take_links, self._owe_to)
        self._is_given, self._ended = asyncio.Event(), asyncio.Event()
        self._owe: Callable[[Debts], None] | None = None
        self._links: list[tuple[CarriedLink, list[int]]] = []
        self._listeners: Mapping[str, Listener] | None = None
        self._channel: ProcessChannel[_Given] = ProcessChannel(
            connection, _Given, self._received, self._gone, needs_all=True
        )

    @classmethod
    def of_this_process(cls) -> OldProcess | None:
        """Return the process that has started this one to hand over to it; None where none has."""
        number = os.environ.pop(DESCRIPTOR, None)
        if number is None:
            return None
        connection = socket.socket(fileno=int(number))
        connection.set_inheritable(False)
        return cls(connection)

    async def begin(self) -> Received | None:
        """Say that this process is ready. Returns what it begins with; None: the old process has ended instead."""
        self._say("ready")
        await self._is_given.wait()
        return self._given if self._channel.is_open else None

    async def wait(self) -> None:
        """Wait until the old process has no link any more."""
        await self._ended.wait()

    def took(self) -> None:
        """Say that this process has put everything in force."""
        self._say("took")

    def serves(self) -> None:
        """Say that this process is where the old one was."""
        self._say("serves")

    def close(self) -> None:
        """Close the way to the old process."""
        self._channel.close()

    def _received(self, message: _Given, descriptors: list[int]) -> None:
        match message:
            case State():
                self._given.state = message
            case Debts():
                if self._owe is not None:
                    self._owe(message)
            case Listens(name):
                self._given.sockets[name] = _socket(descriptors[0])
            case CarriedLink():
                if self._listeners is None:
                    self._links.append((message, descriptors))
                else:
                    self._take(message, descriptors)
            case Reached(what):
                (self._is_given if what == "given" else self._ended).set()

    def _say(self, what: Literal["ready", "took", "serves"]) -> None:
        if self._channel.is_open:
            self._channel.send(Reached(what))

    def _owe_to(self, owe: Callable[[Debts], None]) -> None:
        self._owe = owe

    def _take_links(self, listeners: Sequence[Listener]) -> None:
        self._listeners = {listener.name: listener for listener in listeners}
        waiting, self._links = self._links, []
        for told, descriptors in waiting:
            self._take(told, descriptors)

    def _gone(self) -> None:
        self._is_given.set()
        self._ended.set()

    def _take(self, told: CarriedLink, descriptors: list[int]) -> None:
        client, far = map(_socket, descriptors)
        listener = (self._listeners or {}).get(told.listener)
        if listener is None:  # the new file has no such route
            client.close()
            far.close()
            return
        upstream = Upstream(Address.parse(told.upstream), told.peer)
        listener.take_over(client, far, upstream, told.host, told.before)


def _socket(descriptor: int) -> socket.socket:
    found = socket.socket(fileno=descriptor)
    found.setblocking(False)
    return found


def close_all(sockets: Mapping[str, socket.socket]) -> None:
    """Close what nobody has taken."""
    for one in sockets.values():
        with contextlib.suppress(OSError):
            one.close()


@dataclass(frozen=True, slots=True)
class Handover:
    """The parts of one sidecar that it has or will have. `listeners` grows while it starts.

    `admin_name` tells the admin server's socket, by the address that the file says.
    """

    sides: Sequence[Side]
    throttle: LayeredThrottle
    limits: LimitLayers
    clients: Clients
    capture: Capture | None
    listeners: list[Listener]
    admin: AdminServer
    admin_name: str

    async def offer(self, new: NewProcess, brokers: Addresses) -> bool:
        """Give the new process what is in force, and the sockets that listen. Returns whether it has taken all of it.

        From the moment at which settings are told, HTTP can change none here: that would be lost.
        """
        await self.admin.refuse_changes()
        new.tell(await self._state(brokers))
        for listener in self.listeners:
            if listener.descriptor is not None:
                new.tell(Listens(listener.name), listener.descriptor)
        for descriptor in self.admin.descriptors:
            new.tell(Listens(self.admin_name), descriptor)
        new.tell(Reached("given"))
        return await new.has_reached("took", READY_SECONDS)

    async def _state(self, brokers: Addresses) -> State:
        return State(
            throttle=await self.throttle.handed_over(),
            limits=self.limits.handed_over(),
            brokers={broker: list(map(str, found)) for broker, found in brokers.items()},
            is_captured=self.capture is not None and self.capture.is_in,
            pause=None if self.capture is None else self.capture.pause.handed_over(),
        )

    async def give(self, new: NewProcess, seconds: float) -> bool:
        """Give each connection when nothing is in flight on it, or close it after `seconds`.

        Returns whether the new process serves then. If not, this one accepts again, and owes what it owed.
        """
        self.admin.accept_no_more()
        owed = [self._tell_debts(new)]
        giving = asyncio.ensure_future(self._all_given(new, seconds))
        serving = asyncio.ensure_future(new.has_reached("serves"))
        await asyncio.wait({giving, serving}, return_when=asyncio.FIRST_COMPLETED)
        if giving.done():
            owed.append(self._tell_debts(new))
            new.tell(Reached("ended"))
            await asyncio.wait({serving}, timeout=_SERVES_SECONDS)
        if serving.done() and serving.result():
            return True
        await stopped(giving)
        serving.cancel()
        for listener in self.listeners:
            listener.accept_again()
        for debts in owed:
            self._owe(debts)
        return False

    async def _all_given(self, new: NewProcess, seconds: float) -> None:
        await asyncio.gather(*[listener.hand_over(new.take, seconds) for listener in self.listeners])

    def _tell_debts(self, new: NewProcess) -> Debts:
        debts = Debts(
            sides={side.throttle.side: side.throttle.hand_over() for side in self.sides}, clients=self.clients.owed()
        )
        new.tell(debts)
        return debts

    def _owe(self, debts: Debts) -> None:
        for side in self.sides:
            side.throttle.take_over(debts.sides.get(side.throttle.side, {}))
        self.clients.owe(debts.clients)

    async def take(self, received: Received) -> None:
        """Put in force what HTTP had set, and have debts put in force as they come; ConfigError."""
        state = received.state
        await self.throttle.take_over(state.throttle)
        self.limits.take_over(state.limits)
        if self.capture is not None and state.pause is not None:
            self.capture.pause.begin(state.pause)
        received.owes(self._owe)

    def stand_in(self, received: Received) -> Addresses:
        """Go on with the capture, once its listeners listen. Returns the brokers' addresses."""
        brokers = {
            broker: frozenset(address for one in found if (address := numeric_address(one)) is not None)
            for broker, found in received.state.brokers.items()
        }
        if self.capture is not None:
            self.capture.take_over(brokers, is_in=received.state.is_captured)
        return brokers
