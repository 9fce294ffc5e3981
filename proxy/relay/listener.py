# SPDX-License-Identifier: Apache-2.0
"""A port that clients connect to. Each of their connections gets its own connection to the upstream."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from weir.proxy.config.address import Address
from weir.proxy.relay.admission import Refusal
from weir.proxy.relay.fetches import ReplicaFetches
from weir.proxy.relay.link import Link
from weir.proxy.relay.open_link import HandedOver
from weir.proxy.relay.replica_sources import ReplicaSources
from weir.proxy.relay.side import Side
from weir.proxy.relay.stand_in import StandIns
from weir.proxy.relay.transport import TcpTransport, Transport, connect, set_options
from weir.proxy.tls.live_keys import TlsClient, TlsServer
from weir.proxy.tls.results import LASTING_FAILURES, HandshakeFailed

_BACKLOG: Final = 1024
_ACCEPTS_IN_A_ROW: Final = 2  # in one turn of the loop: each costs up to half a millisecond
_ACCEPT_PAUSE_SECONDS: Final = 0.5
_RESET: Final = struct.pack("ii", 1, 0)  # linger 0: closed with a reset, of which the kernel keeps nothing

_Ends = tuple[Transport, Transport]  # a client's connection, and the one to its upstream


Give = Callable[["Listener", Link, HandedOver], None]
"""Takes a link away from its listener, to give it to another process."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a connection is carried to.

    `peer` is the upstream broker's id on an egress route. It is None on the ingress: there each fetch names its
    replica.
    `mark` is set on the connection (SO_MARK), so that no capture leads it back; None where nothing is captured.
    `tls` is used with it; None: none.
    """

    address: Address
    peer: int | None = None
    mark: int | None = None
    tls: TlsClient | None = None

    def __str__(self) -> str:
        return str(self.address)


@dataclass(eq=False, repr=False)
class Listener:
    """Accepts connections on `address` for `side`, and carries them to `upstream`.

    - `upstream` is the same for all, or is asked for each connection; where it has none, the connection is closed.
    - `sources` judges whether a client is a replica. None: every client that claims to be one is believed.
    - `tls` is used with clients; None: none. TLS that is not ended here passes as it is.
    - `prepare` is given the socket before it listens.
    - With `stand_ins`, so does TLS that is ended here, while clients or the upstream do not take it.
    - With port 0 a free one is chosen; `address` then has it.
    - `name` tells it from the sidecar's others, also to the process that takes it over.
    """

    side: Side
    address: Address
    upstream: Upstream | Callable[[socket.socket], Upstream | None]
    sources: ReplicaSources | None = None
    tls: TlsServer | None = None
    _: KW_ONLY
    stand_ins: StandIns | None = None
    prepare: Callable[[socket.socket], None] | None = None
    name: str = ""
    links: set[Link] = field(default_factory=set)
    """The links that move bytes now."""
    _socket: socket.socket | None = None
    _connecting: dict[asyncio.Task[_Ends], tuple[socket.socket, str, Upstream]] = field(default_factory=dict)
    _resume: asyncio.TimerHandle | None = None
    _draining: bool = False
    _give: Give | None = None
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._empty.set()
        if self.stand_ins is not None:
            self.stand_ins.links = self.links

    async def start(self, listening: socket.socket | None = None) -> None:
        """Listen, with a socket that does so already where there is one.

        Raises OSError when the address is taken, or is not this machine's.
        """
        if listening is None:
            listening = await self._bound()
        elif self.prepare is not None:
            self.prepare(listening)
        self._socket = listening
        self.address = Address(self.address.host, listening.getsockname()[1])
        asyncio.get_running_loop().add_reader(listening, self._accept)

    async def _bound(self) -> socket.socket:
        found = await asyncio.get_running_loop().getaddrinfo(
            self.address.host, self.address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, target = found[0]
        listening = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.prepare is not None:
                self.prepare(listening)
            listening.bind(target)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        return listening

    @property
    def descriptor(self) -> int | None:
        """That of the socket that listens; None where none does."""
        return None if self._socket is None else self._socket.fileno()

    async def hand_over(self, give: Give, limit_seconds: float) -> None:
        """Accept nothing for now, and give each connection away when nothing is in flight on it.

        What cannot be given is drained, as far as it is idle within `limit_seconds`. The socket goes on to listen:
        `accept_again` accepts what has come meanwhile, if nobody else has.
        """
        self._give = give
        self._stop_accepting()
        for link in list(self.links):
            link.hand_over(partial(give, self))
        await self._emptied(limit_seconds, self._close_links)

    def accept_again(self) -> None:
        """Accept connections after a `hand_over` that failed. Those that are left are closed between two requests."""
        self._give = None
        for link in self.links:
            link.keep()
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def take_over(
        self, client: socket.socket, far: socket.socket, upstream: Upstream, host: str, told: HandedOver
    ) -> None:
        """Go on with a connection that another process has given away."""
        self._count_opened(host)
        self._open(TcpTransport(client), TcpTransport(far), host, upstream, told)

    def close(self) -> None:
        """Stop accepting. Connections go on."""
        self._stop_accepting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _stop_accepting(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    async def drain(self, limit_seconds: float) -> None:
        """Stop accepting, and close each connection when nothing is in flight on it, or after `limit_seconds`."""
        self.close()
        self._draining = True
        for task in self._connecting:
            task.cancel()  # nothing was read from these clients yet
        self.drain_links()
        await self._emptied(limit_seconds, self.abort)

    async def _emptied(self, limit_seconds: float, end: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(limit_seconds):
                await self._empty.wait()
        except TimeoutError:
            end()
            await self._empty.wait()

    def drain_links(self) -> None:
        """Close each connection when nothing is in flight on it. New ones are accepted."""
        for link in list(self.links):
            link.drain()

    def abort(self) -> None:
        """Stop accepting and close every connection at once."""
        self.close()
        self._draining = True
        self._close_links()

    def _close_links(self) -> None:
        for task in self._connecting:
            task.cancel()
        for link in list(self.links):
            link.close()

    def _accept(self) -> None:
        listening = self._socket
        for _ in range(_ACCEPTS_IN_A_ROW):
            if listening is None:
                return
            try:
                client, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            host = str(address[0])
            if (refusal := self.side.admission.refusal(host)) is not None:
                self._refuse(client, host, refusal)
                continue
            upstream = self.upstream if isinstance(self.upstream, Upstream) else self.upstream(client)
            if upstream is None:
                client.close()
                continue
            client.setblocking(False)
            self._count_opened(host)
            task = asyncio.get_running_loop().create_task(self._connect(client, host, upstream))
            self._connecting[task] = client, host, upstream
            task.add_done_callback(self._connected)

    def _refuse(self, client: socket.socket, host: str, refusal: Refusal) -> None:
        """Close a connection at once. Its client tries again; each try costs one accept."""
        side = self.side
        side.stats.connections_refused[refusal] += 1
        with contextlib.suppress(OSError):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        client.close()
        if refusal == "too_many":
            admission = side.admission
            limit = admission.most if admission.total >= admission.most else admission.most_of_others
            peer = str(self.address)  # one line for all clients
        else:
            peer, limit = host, side.admission.most_from_address
        side.log.fault("connection_refused", peer, side=side.stats.side, reason=refusal, limit=limit)

    def _pause_accepting(self, error: OSError) -> None:
        """Stop accepting for a while, without descriptors or memory. Clients wait in the backlog."""
        side, loop = self.side, asyncio.get_running_loop()
        side.stats.accept_errors += 1
        side.log.fault("accept_failed", str(self.address), side=side.stats.side, reason=str(error))
        if self._socket is not None:
            loop.remove_reader(self._socket)
            self._resume = loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again)

    def _accept_again(self) -> None:
        self._resume = None
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def _connect(self, client: socket.socket, host: str, upstream: Upstream) -> _Ends:
        near, tls = await self._meet(client, host, upstream)
        try:
            if tls is None:
                return near, TcpTransport(await self._reach(upstream))
            open_socket = partial(self._reach, upstream)
            return near, await self.side.handshakes.connect(open_socket, upstream.address, tls)
        except BaseException:
            if not isinstance(near, TcpTransport):
                near.close()  # the client's own socket, which `_connected` closes, may be no longer this one
            raise

    async def _meet(self, client: socket.socket, host: str, upstream: Upstream) -> tuple[Transport, TlsClient | None]:
        """Return a client's connection, and how TLS is used with the upstream."""
        tls, handshakes = self.tls, self.side.handshakes
        passes = self.stand_ins is not None and self.stand_ins.lets_pass(str(upstream), host)
        if passes and await handshakes.speaks_tls(client):
            set_options(client)
            return TcpTransport(client), None
        if tls is not None and not tls.takes_plaintext:
            return await handshakes.accept(client, tls, host), upstream.tls
        speaks_tls = (tls is not None or upstream.tls is not None) and await handshakes.speaks_tls(client)
        if tls is not None and speaks_tls:
            return await handshakes.accept(client, tls, host), upstream.tls
        set_options(client)
        return TcpTransport(client), None if speaks_tls else upstream.tls

    async def _reach(self, upstream: Upstream) -> socket.socket:
        async with asyncio.timeout(self.side.connect_seconds):
            return await connect(upstream.address, upstream.mark)

    def _connected(self, task: asyncio.Task[_Ends]) -> None:
        """Begin to relay. If the upstream is down, the client is closed at once and can try again."""
        client, client_host, upstream = self._connecting.pop(task)
        if task.cancelled():
            client.close()
            self._count_closed(client_host)
            return
        error = task.exception()
        if error is not None:
            if _left_silently(client):
                self.side.stats.connections_silent += 1
            elif not isinstance(error, HandshakeFailed):
                self._report_failure(error, client_host, upstream)
            elif self.stand_ins is not None and error.result in LASTING_FAILURES:  # the failure itself is reported
                self.stand_ins.failed(str(upstream), client_host)
            client.close()
            self._count_closed(client_host)
            return
        link = self._open(*task.result(), client_host, upstream)
        self.side.first_requests.expect(link)
        if self._give is not None:
            link.hand_over(partial(self._give, self))
        elif self._draining:
            link.drain()

    def _open(
        self, near: Transport, far: Transport, host: str, upstream: Upstream, before: HandedOver | None = None
    ) -> Link:
        fetches = ReplicaFetches(self.side, upstream.peer, self.sources, host)
        link = Link(self.side, near, far, fetches, str(upstream), self._closed)
        self.links.add(link)
        link.start(before)
        return link

    def _report_failure(self, error: BaseException, client_host: str, upstream: Upstream) -> None:
        if isinstance(error, TimeoutError):
            kind, reason = "timeout", f"no answer in {self.side.connect_seconds:g} s"
        else:
            kind = "refused" if isinstance(error, ConnectionRefusedError) else "unreachable"
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
        stats = self.side.stats
        stats.upstream_failures[kind] += 1
        self.side.log.fault(
            "upstream_failed", str(upstream), side=stats.side, kind=kind, reason=reason, client=client_host
        )

    def _closed(self, link: Link) -> None:
        self.links.discard(link)
        if self.stand_ins is not None:
            self.stand_ins.closed(link)
        self.side.stats.connections_silent += not link.relayed.requests
        self.side.first_requests.drop(link)
        self._count_closed(link.client_host)

    def _count_opened(self, host: str) -> None:
        self.side.admission.enter(host)
        self.side.stats.connections += 1
        self.side.stats.connections_accepted += 1
        self._empty.clear()

    def _count_closed(self, host: str) -> None:
        self.side.stats.connections -= 1
        self.side.admission.leave(host)
        if not self.links and not self._connecting:
            self._empty.set()


def _left_silently(client: socket.socket) -> bool:
    """Whether a client of which nothing was read has closed its connection, and sent nothing."""
    try:
        return not client.recv(1, socket.MSG_PEEK)
    except OSError as error:  # nothing has come yet, or the socket is that of a handshake now
        return isinstance(error, ConnectionResetError)
