# SPDX-License-Identifier: Apache-2.0
"""Whatever becomes of connections: as many are counted as there are, and none when all are gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying
from tests.protocol.wire import request, response
from tests.proxy.tls.securing import Keys
from weir.proxy.config.address import Address
from weir.proxy.relay.listener import Listener, Upstream
from weir.proxy.tls.live_keys import TlsServer

ON_BOTH_LOOPS = True

_EVENTS = 80
_TLS_AND_NO_MORE = b"\x16\x03\x01\x00\x10"
_NO_TLS_RECORD = b"\x16" + bytes(20)
_SENT = (b"", request(3, 0, 1), request(3, 0, 1)[:7], b"GET / HTTP/1.1\r\n\r\n", _TLS_AND_NO_MORE, _NO_TLS_RECORD)


class Crowd:
    """Clients of some listeners of one side. Some of these take TLS, and the broker of some is down."""

    def __init__(self, relay: Relaying, seed: int, tls: TlsServer) -> None:
        self._relay = relay
        self._draw = random.Random(seed)
        self._tls = tls
        self._ends: list[Peer] = []
        self._listening: list[Listener] = []
        self._all: list[Listener] = []
        self._drains: list[asyncio.Task[None]] = []
        relay.relay.handshakes.most = 3

    async def listen(self) -> None:
        """Start one more listener."""
        upstream = self._relay.upstream if self._draw.random() < 0.8 else Address("127.0.0.1", 1)
        tls = self._tls if self._draw.random() < 0.5 else None
        listener = Listener(self._relay.relay, Address("127.0.0.1", 0), Upstream(upstream, 2), tls=tls)
        await listener.start()
        self._listening.append(listener)
        self._all.append(listener)

    async def arrive(self) -> None:
        """Connect, and send something or nothing."""
        connection = socket.socket()
        connection.bind((self._draw.choice(["127.0.0.1", "127.0.0.2"]), 0))
        client = self._relay.keep(Peer(connection))
        address = self._draw.choice(self._listening).address
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_connect(connection, (address.host, address.port))
            await client.send(self._draw.choice(_SENT))
            self._ends.append(client)

    async def take(self) -> None:
        """Have the broker take what was opened."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._ends.append(self._relay.keep(Peer(self._relay.broker.accept()[0])))

    async def say(self) -> None:
        """Have a client or the broker send what nobody asked for."""
        if self._ends:
            with contextlib.suppress(OSError):
                self._draw.choice(self._ends).connection.send(response(1))

    async def leave(self) -> None:
        """Have one end go, in one of the ways that there are."""
        if self._ends:
            end = self._ends.pop(self._draw.randrange(len(self._ends)))
            with contextlib.suppress(OSError):
                self._draw.choice([end.close, end.reset, end.half_close])()

    async def reload(self) -> None:
        """Change the limits."""
        side = self._relay.relay
        side.admission.most, side.admission.most_from_address = self._draw.choice([4, 100]), self._draw.choice([2, 100])
        side.first_requests.seconds = self._draw.choice([0.0, 600.0])
        side.first_requests.expire()

    async def stop(self) -> None:
        """Stop a listener, at once or when its connections are done, and start another."""
        listener = self._listening.pop(self._draw.randrange(len(self._listening)))
        if self._draw.random() < 0.5:
            listener.abort()
        else:
            self._drains.append(asyncio.create_task(listener.drain(0.02)))
        await self.listen()

    async def turns(self) -> None:
        """Let the loop go on for a moment."""
        for _ in range(self._draw.randrange(6)):
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Have all of this happen in any order, and then everybody leave."""
        await self.listen()
        events = [self.arrive] * 4 + [self.take, self.say, self.leave, self.leave, self.reload, self.stop, self.turns]
        for _ in range(_EVENTS):
            await self._draw.choice(events)()
            self.check()
        for listener in self._all:
            listener.abort()
        await asyncio.gather(*self._drains)
        for end in self._ends:
            end.close()
        await self._relay.until(lambda: not self._relay.relay.admission.total)
        self.check()

    def check(self) -> None:
        """As many are counted as wait for their upstream or are linked, by address too."""
        side = self._relay.relay
        hosts = Counter(link.client_host for listener in self._all for link in listener.links)
        hosts.update(host for listener in self._all for _, host, _ in listener._connecting.values())
        assert side.admission.total == side.stats.connections == hosts.total()
        assert side.admission._from == hosts
        assert set(side.first_requests._since) <= {link for listener in self._all for link in listener.links}


@pytest.mark.parametrize("seed", range(8))
async def test_connections_are_counted_right_whatever_happens(seed: int, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    async with relaying() as relay:
        await Crowd(relay, seed, keys.server(takes_plaintext=bool(seed % 2))).run()
