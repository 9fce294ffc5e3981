# SPDX-License-Identifier: Apache-2.0
"""What tests write in a broker's place leaves no connection behind."""

import asyncio
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from tests.fakes.servers import serving
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    await asyncio.Event().wait()


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("turns", range(5))
async def test_its_connections_end_with_a_server_whatever_peers_do(tmp_path: Path, secured: bool, turns: int) -> None:
    """One has said nothing, one is half closed, one came some turns of the loop ago, and one's TLS is not ended."""
    authority = Authority(tmp_path)
    files = KeyFiles(certificate=authority.issue("localhost").together, ca=authority.ca)
    tls = load_server_keys(files, "required").context if secured else None
    with ExitStack() as peers:
        async with serving(_silent, tls) as (_, port), asyncio.timeout(10):
            standing = [peers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in "ab"]
            if secured:
                standing.append(
                    await asyncio.to_thread(_shaken, load_client_keys(files, checks_name=True).context, port)
                )
                peers.enter_context(standing[-1])
            standing[1].shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.02)
            standing.append(peers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
            for _ in range(turns):
                await asyncio.sleep(0)
        for one in standing:
            assert await asyncio.to_thread(_has_ended, one)


def _shaken(context: ssl.SSLContext, port: int) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="localhost")


def _has_ended(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


async def test_a_server_that_fails_fails_its_test() -> None:
    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise RuntimeError("not what was asked")

    with pytest.raises(RuntimeError, match="not what was asked"):
        async with serving(fails) as (_, port):
            with socket.create_connection(("127.0.0.1", port), timeout=10):
                await asyncio.sleep(0.02)
