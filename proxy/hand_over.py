"""Hands a sidecar over to a new process of it: its listeners, its connections, and what HTTP has set.

The new process may be another version of weir. The old one starts it, and tells it nothing before it has read its file.
What then fails to begin leaves the old one as it was. Connections are given one by one, each between two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from weir.proxy.throttle.table import LayeredThrottle
from weir.proxy.tls_workers.channel import ProcessChannel

DESCRIPTOR: Final = "WEIR_HAND_OVER"
"""The variable that tells a new process which descriptor leads to the old one."""

READY_SECONDS: Final = 60.0
"""How long a new process may take to read its file."""

IN_PATH_SECONDS: Final = 5.0
"""How long it may take to be in the path after it has everything."""

_SERVES_SECONDS: Final = 2 * IN_PATH_SECONDS


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """How far the hand-over has come.

    - `ready`: the new process takes what comes.
    - `begun`: the old process accepts nothing any more.
    - `ended`: the old process has no link any more.
    - `serves`: the new process is where the old one was.
    """

    what: Literal["ready", "begun", "ended", "serves"]


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """What the old process knows of the cluster, its capture and its clients.

    `pause` is the body that began a pause; `owed` is what limited clients owe.
    """

    brokers: dict[int, list[str]] = {}
    is_captured: bool = False
    pause: dict[str, Any] | None = None
    owed: list[Owed] = []


class Listens(msgspec.Struct, frozen=True, tag="listens"):
    """A socket that listens, by its listener's name."""

    name: str


class Carries(msgspec.Struct, frozen=True, kw_only=True, tag="carries"):
    """A link: its client's connection, and the one to its upstream."""

    listener: str
    host: str
    upstream: str
    peer: int | None = None
    before: HandedOver = HandedOver()


_Given: TypeAlias = State | Setting | Listens | Carries | Reached


def own_command() -> list[str]:
    """Return what starts this program again: what its name leads to now, which may be another version."""
    name = sys.argv[0]
    is_program = os.access(name, os.X_OK) and not name.endswith(".py")
    return [name, *sys.argv[1:]] if is_program else [sys.executable, *sys.orig_argv[1:]]


class Heir:
    """The new process, as the old one sees it. `close` ends it if nothing had begun.

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
        self._events = {what: asyncio.Event() for what in ("ready", "serves")}
        self._ended = asyncio.Event()
        self._has_begun = False
        self._channel: ProcessChannel[Reached] = ProcessChannel(ours, Reached, self._received, self._ended.set)

    @property
    def pid(self) -> int:
        """The new process's id."""
        return self._process.pid

    async def is_ready(self) -> bool:
        """Wait for it to have read its file. Returns whether it has."""
        return await self._is_told("ready", READY_SECONDS)

    async def serves(self) -> bool:
        """Wait for it to be in the path. Returns whether it is."""
        return await self._is_told("serves", _SERVES_SECONDS)

    def tell(self, message: _Given, *descriptors: int) -> None:
        """Give it a message, and descriptors that it then has, too."""
        self._has_begun = self._has_begun or isinstance(message, Reached)
        if self._channel.is_open:
            self._channel.give(message, descriptors)

    def take(self, listener: Listener, link: Link, before: HandedOver) -> None:
        """Give it a link on which nothing is in flight."""
        host, upstream, peer = link.client_host, link.upstream_name, link.connection.fetches.peer
        self.tell(
            Carries(listener=listener.name, host=host, upstream=upstream, peer=peer, before=before), *link.descriptors
        )

    def close(self) -> None:
        """Close the way to it. If nothing had begun, kill it: the old process goes on alone."""
        self._channel.close()
        if not self._has_begun:
            self._process.kill()
            self._process.wait()
        self._process.returncode = 0  # it goes on by itself: nobody is to wait for it

    def _received(self, message: Reached, descriptors: list[int]) -> None:
        self._events[message.what].set()

    async def _is_told(self, what: str, seconds: float) -> bool:
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._events[what], self._ended)]
        _, unfinished = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in unfinished:
            task.cancel()
        return self._events[what].is_set()


@dataclass(eq=False, slots=True)
class Inherited:
    """What a new process begins with.

    - `sockets`: those that listen, by name. A listener removes its own; what is left at the end has no listener.
    - `listens`: to be called with the listeners once they listen. They then get the links, as these come.
    """

    listens: Callable[[Sequence[Listener]], None]
    state: State = field(default_factory=State)
    settings: list[Setting] = field(default_factory=list)
    sockets: dict[str, socket.socket] = field(default_factory=dict)


class Predecessor:
    """The old process, as the new one sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._inherited = Inherited(self._take_links)
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._links: list[tuple[Carries, list[int]]] = []
        self._listeners: Mapping[str, Listener] | None = None
        self._channel: ProcessChannel[_Given] = ProcessChannel(connection, _Given, self._received, self._gone)

    @classmethod
    def of_this_process(cls) -> Predecessor | None:
        """Return the process that has started this one to hand over to it; None where none has."""
        number = os.environ.pop(DESCRIPTOR, None)
        if number is None:
            return None
        connection = socket.socket(fileno=int(number))
        connection.set_inheritable(False)
        return cls(connection)

    async def begin(self) -> Inherited | None:
        """Say that this process is ready. Returns what it begins with; None: the old process has ended instead."""
        self._channel.send(Reached("ready"))
        await self._begun.wait()
        return self._inherited if self._channel.is_open else None

    async def wait(self) -> None:
        """Wait until the old process has no link any more."""
        await self._ended.wait()

    def serves(self) -> None:
        """Say that this process is where the old one was."""
        if self._channel.is_open:
            self._channel.send(Reached("serves"))

    def close(self) -> None:
        """Close the way to the old process."""
        self._channel.close()

    def _received(self, message: _Given, descriptors: list[int]) -> None:
        match message:
            case State():
                self._inherited.state = message
            case Setting():
                self._inherited.settings.append(message)
            case Listens(name):
                self._inherited.sockets[name] = _socket(descriptors[0])
            case Carries():
                if self._listeners is None:
                    self._links.append((message, descriptors))
                else:
                    self._take(message, descriptors)
            case Reached(what):
                (self._begun if what == "begun" else self._ended).set()

    def _take_links(self, listeners: Sequence[Listener]) -> None:
        self._listeners = {listener.name: listener for listener in listeners}
        waiting, self._links = self._links, []
        for told, descriptors in waiting:
            self._take(told, descriptors)

    def _gone(self) -> None:
        self._begun.set()
        self._ended.set()

    def _take(self, told: Carries, descriptors: list[int]) -> None:
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
class Estate:
    """The parts of one sidecar that it has or will have. `listeners` grows while it starts.

    `admin_name` tells the admin server's socket, by the address that the file says.
    """

    throttle: LayeredThrottle
    limits: LimitLayers
    clients: Clients
    capture: Capture | None
    listeners: list[Listener]
    admin: AdminServer
    admin_name: str

    async def give(self, heir: Heir, brokers: Addresses, seconds: float) -> None:
        """Give the new process settings and listeners at once, and a connection when nothing is in flight on it.

        What is still in flight after `seconds` is closed.
        """
        for setting in (*self.throttle.handed_over(), *self.limits.handed_over()):
            heir.tell(setting)
        known = {broker: list(map(str, found)) for broker, found in brokers.items()}
        is_captured = self.capture is not None and self.capture.is_in
        pause = None if self.capture is None else self.capture.pause.handed_over()
        heir.tell(State(brokers=known, is_captured=is_captured, pause=pause, owed=self.clients.owed()))
        for listener in self.listeners:
            if listener.descriptor is not None:
                heir.tell(Listens(listener.name), listener.descriptor)
        for descriptor in self.admin.descriptors:
            heir.tell(Listens(self.admin_name), descriptor)
        self.admin.accept_no_more()
        heir.tell(Reached("begun"))
        await asyncio.gather(*(listener.hand_over(heir.take, seconds) for listener in self.listeners))
        heir.tell(Reached("ended"))

    async def take(self, inherited: Inherited) -> Addresses:
        """Go on with what HTTP had set and with the capture. Returns the brokers' addresses."""
        state, settings = inherited.state, inherited.settings
        await self.throttle.take_over(one for one in settings if one.of == "throttle")
        self.limits.take_over(one for one in settings if one.of == "limits")
        self.clients.owe(state.owed)
        brokers = {
            broker: frozenset(address for one in found if (address := numeric_address(one)) is not None)
            for broker, found in state.brokers.items()
        }
        if self.capture is not None:
            if state.pause is not None:
                self.capture.pause.begin(state.pause)
            self.capture.take_over(brokers, is_in=state.is_captured)
        return brokers
