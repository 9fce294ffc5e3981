# SPDX-License-Identifier: Apache-2.0
"""Readiness: whether an upstream really answers, in Kafka's protocol or in TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.pki import Authority
from tests.fakes.servers import serving
from weir.proxy import upstream_watch
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys
from weir.proxy.tls.live_keys import LiveKeys, TlsClient
from weir.proxy.upstream_watch import CACHE_SECONDS, UpstreamWatch

Serve = Callable[[bytes], Awaitable[bytes]]


class Upstream:
    """A server whose answer to a connection's first bytes is `serve(those)`; b"" closes."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.received: list[bytes] = []
        self.address = Address("127.0.0.1", 0)

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received.append(await reader.read(1000))
            writer.write(await self.serve(self.received[-1]))
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def upstream(serve: Serve) -> AsyncIterator[Upstream]:
    served = Upstream(serve)
    async with serving(served.accepted) as (_, port):
        served.address = Address("127.0.0.1", port)
        yield served


def asking(*brokers: Address, **also: Any) -> UpstreamWatch:
    return UpstreamWatch(brokers, [], EventLog(), **also)


async def kafka(request: bytes) -> bytes:
    return b"\x00\x00\x00\x0a" + request[8:12] + b"\x00\x00\x00\x00\x00\x00"


async def closes(request: bytes) -> bytes:
    return b""


async def tls_that_wants_a_certificate(request: bytes) -> bytes:
    """Hang up on plaintext; answer a ClientHello (0x16) with the alert handshake_failure."""
    return bytes.fromhex("15030300020228") if request[:1] == b"\x16" else b""


async def test_probe_upstream_that_answers_is_no_failure() -> None:
    async with upstream(kafka) as served:
        assert await asking(served.address).failures() == []
        # Size 14, ApiVersions (18) v0, correlation id 0, client id "weir".
        assert served.received == [bytes.fromhex("0000000e 0012 0000 00000000 0004") + b"weir"]


async def test_probe_upstream_that_refuses_is_named_with_the_reason() -> None:
    async with upstream(kafka) as served:
        address = served.address
    assert await asking(address).failures() == [f"upstream {address} cannot be reached: Connection refused"]


async def test_probe_upstream_that_hangs_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is starting or stuck accepts connections, in the kernel, and says nothing."""
    monkeypatch.setattr(upstream_watch, "PROBE_TIMEOUT_SECONDS", 0.05)
    released = asyncio.Event()

    async def hangs(request: bytes) -> bytes:
        await released.wait()
        return b""

    async with upstream(hangs) as served:
        assert await asking(served.address).failures() == [f"upstream {served.address} did not answer within 0.05 s"]
        released.set()


async def test_probe_upstream_closing_without_an_answer_is_a_failure() -> None:
    async with upstream(closes) as served:
        assert await asking(served.address).failures() == [
            f"upstream {served.address} closes connections without an answer"
        ]


async def test_probe_upstream_that_speaks_tls_only_answers() -> None:
    now = 0.0
    async with upstream(tls_that_wants_a_certificate) as served:
        probe = asking(served.address, _clock=lambda: now)
        assert await probe.failures() == []
        assert [first[:1] for first in served.received] == [b"\x00", b"\x16"]
        now += CACHE_SECONDS
        assert await probe.failures() == []
        assert [first[:1] for first in served.received] == [b"\x00", b"\x16", b"\x16"]  # no plaintext any more


async def test_probe_asked_again_soon_answers_from_its_cache() -> None:
    now = 0.0
    async with upstream(kafka) as served:
        probe = asking(served.address, _clock=lambda: now)
        await asyncio.gather(probe.failures(), probe.failures())
        now += CACHE_SECONDS * 0.99
        await probe.failures()
        assert len(served.received) == 1
        now += CACHE_SECONDS
        await probe.failures()
        assert len(served.received) == 2


async def test_probe_several_upstreams_names_those_that_fail() -> None:
    async with upstream(kafka) as good, upstream(closes) as bad:
        failures = await asking(good.address, bad.address).failures()
    assert [str(bad.address) in failure for failure in failures] == [True]


@pytest.mark.parametrize("name", ["localhost", "somebody.test"])
async def test_probe_uses_an_upstreams_tls_keys_or_says_why_not(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    files = KeyFiles(certificate=authority.issue("localhost").together, ca=authority.ca)
    server = load_server_keys(files, "required").context
    served = Upstream(kafka)
    async with serving(served.accepted, server) as (_, port):
        address = Address("127.0.0.1", port)
        client = TlsClient(LiveKeys("tls", files, partial(load_client_keys, files, checks_name=True)), name)
        failures = await asking(address, tls={address: client}).failures()
        if name == "localhost":
            assert failures == [] and len(served.received) == 1
        else:
            [failure] = failures
            assert "cannot be reached: TLS failed: hostname mismatch" in failure
