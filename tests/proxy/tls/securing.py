# SPDX-License-Identifier: Apache-2.0
"""Clients and brokers that speak TLS, and the keys of the relay between them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.fakes.pki import Authority, Issued
from tests.fakes.relaying import DEADLINE_SECONDS, Peer, Relaying
from weir.proxy.tls.keys import ClientAuth, KeyFiles, load_client_keys, load_server_keys
from weir.proxy.tls.live_keys import LiveKeys, TlsClient, TlsServer

T = TypeVar("T")

BROKER = "broker-1.test"
FOLLOWER = "broker-2.test"


class Keys:
    """An authority, with a broker's certificate and a follower's."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.broker = self.authority.issue(BROKER)
        self.follower = self.authority.issue(FOLLOWER)

    def files(self, issued: Issued | None, ca: str | None = None) -> KeyFiles:
        """The files of a certificate, and of who is trusted: this authority, unless another one is given."""
        ca = ca or self.authority.ca
        return KeyFiles(ca=ca) if issued is None else KeyFiles(certificate=issued.together, ca=ca)

    def server(
        self,
        client_auth: ClientAuth = "required",
        *,
        allowed_names: tuple[str, ...] | None = None,
        takes_plaintext: bool = False,
    ) -> TlsServer:
        """The listener's end."""
        files = self.files(self.broker)
        keys = LiveKeys("tls", files, partial(load_server_keys, files, client_auth))
        return TlsServer(keys, allowed_names, takes_plaintext)

    def client(
        self,
        issued: Issued | None = None,
        *,
        server_name: str | None = BROKER,
        allowed_names: tuple[str, ...] | None = None,
        falls_back: bool = False,
    ) -> TlsClient:
        """The end that connects to the upstream."""
        files = self.files(issued or self.broker)
        keys = LiveKeys("upstream_tls", files, partial(load_client_keys, files, checks_name=server_name is not None))
        return TlsClient(keys, server_name, allowed_names, falls_back)


class SecurePeer(Peer):
    """A Peer whose connection speaks TLS."""

    connection: ssl.SSLSocket

    async def shake_hands(self) -> None:
        """Do the handshake."""
        await self._waited(lambda: self.connection.do_handshake())

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        await self._waited(lambda: self.connection.send(data))

    async def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes; fewer when the other end sends no more."""
        received = bytearray()
        while (left := size - len(received)) and (chunk := await self._waited(partial(self.connection.recv, left))):
            received += chunk
        return bytes(received)

    async def _waited(self, act: Callable[[], T]) -> T:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    return act()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    await asyncio.sleep(0.001)


async def secure_client(
    relay: Relaying, keys: Keys, issued: Issued | None, *, context: ssl.SSLContext | None = None
) -> SecurePeer:
    """Connect with TLS. In TLS 1.3 the listener may refuse the certificate after this returned."""
    plain = await relay.client()
    context = context or load_client_keys(keys.files(issued), checks_name=True).context
    wrapped = context.wrap_socket(plain.connection, server_hostname=BROKER, do_handshake_on_connect=False)
    return await _shaken(relay, wrapped)


async def secure_broker(
    relay: Relaying, keys: Keys, issued: Issued | None = None, client_auth: ClientAuth = "required"
) -> SecurePeer:
    """Accept with TLS, as the broker behind the relay."""
    plain = await relay.accept()
    context = load_server_keys(keys.files(issued or keys.broker), client_auth).context
    wrapped = context.wrap_socket(plain.connection, server_side=True, do_handshake_on_connect=False)
    return await _shaken(relay, wrapped)


async def _shaken(relay: Relaying, wrapped: ssl.SSLSocket) -> SecurePeer:
    peer = relay.keep(SecurePeer(wrapped))
    await peer.shake_hands()
    return peer
