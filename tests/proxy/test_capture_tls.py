# SPDX-License-Identifier: Apache-2.0
"""Captured connections whose TLS is ended here, or passes, and when a capture steps out for it."""

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.pki import Authority
from tests.fakes.servers import connected, serving
from tests.protocol.wire import request, response
from tests.proxy.captured import capturing, settle
from weir.proxy.capture.tls_trial import TlsTrial
from weir.proxy.config.address import Address
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.load import parse_config
from weir.proxy.relay import stand_in
from weir.proxy.relay.stand_in import FAILURES
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys
from weir.proxy.tls.live_keys import LiveKeys, TlsClient
from weir.proxy.tls.results import TlsStats

ON_THIS_MACHINE = {1: frozenset({ip_address("127.0.0.1")}), 2: frozenset({ip_address("10.0.0.2")})}


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request, as a broker."""
    with contextlib.suppress(OSError):
        while await reader.read(1000):
            writer.write(response(1))
    writer.close()


@contextlib.asynccontextmanager
async def broker_with_tls(
    folder: Path, monkeypatch: pytest.MonkeyPatch, allowed_name: str = "localhost", upstream: str = ""
) -> AsyncIterator[tuple[int, RouteKeys, ssl.SSLContext]]:
    """A broker that answers what a client asks: its port, the keys that a sidecar captures with, and a follower's."""
    authority = Authority(folder)
    files = KeyFiles(certificate=authority.issue("localhost").together, ca=authority.ca)

    async with serving(answering, load_server_keys(files, "required").context) as (_, port):
        monkeypatch.setattr("weir.proxy.capture.capture.original_destination", lambda *_: Address("127.0.0.1", port))
        monkeypatch.setattr("weir.proxy.capture.capture.mark_of", lambda broker_id: None)  # it needs a privilege
        monkeypatch.setattr("weir.proxy.capture.capture.make_transparent", lambda *_: None)  # so does this
        lines = f'certificate = "{files.certificate}"\nca = "{files.ca}"\n'
        keys = RouteKeys(
            parse_config(
                f'broker_id = 1\n[cluster]\nbootstrap_servers = "b:9092"\n[capture]\nport = {port}\n'
                f"[capture.tls]\n{lines}"
                f'client_auth = "required"\nallowed_names = ["{allowed_name}"]\n[capture.upstream_tls]\n{upstream}'
            )
        )
        yield port, keys, load_client_keys(files, checks_name=True).context


async def test_captured_tls_to_a_peer_is_ended_or_passes_if_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes as it is where the certificate for that peer is refused."""
    authority = Authority(tmp_path / "peers")
    peers = f'[capture.peer_tls]\ncertificate = "{authority.issue("localhost").together}"\nca = "{tmp_path}/ca.pem"\n'
    peers += 'client_auth = "required"\nallowed_names = ["localhost"]\n[capture.peer_upstream_tls]\n'
    peers += f'certificate = "{tmp_path}/localhost-both.pem"\nallowed_names = ["localhost"]\n'
    async with (
        broker_with_tls(tmp_path, monkeypatch, upstream=peers) as (port, keys, refusing),
        capturing(keys, port=port, sides=("follower",)) as (capture, _, _),
        asyncio.timeout(10),
    ):
        own = KeyFiles(certificate=str(tmp_path / "localhost-both.pem"), ca=authority.ca)
        trusting = load_client_keys(own, checks_name=True)
        (listener, *_) = capture.listeners
        there = ("127.0.0.1", listener.address.port)

        def ask(context: ssl.SSLContext) -> None:
            with (
                socket.create_connection(there, timeout=5) as plain,  # which tells why it refuses, unlike asyncio's
                context.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                connection.sendall(request(3, 0, 1))
                assert connection.recv(len(response(1))) == response(1)

        async def asked(context: ssl.SSLContext) -> None:
            await asyncio.to_thread(ask, context)

        monkeypatch.setattr(stand_in, "FAILING_SECONDS", 0.0)
        await asked(trusting.context)
        tls = listener.side.tls.handshakes
        assert tls == {("follower", "client", "ok"): 1, ("follower", "upstream", "ok"): 1}
        for number in range(FAILURES):
            with pytest.raises(ssl.SSLCertVerificationError):
                await asked(refusing)
            while tls["follower", "client", "refused_by_peer"] <= number:
                await settle()
        await asked(refusing)
        assert listener.side.stats.passthrough == {"tls": 1}


async def test_captured_tls_is_ended_where_there_are_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        broker_with_tls(tmp_path, monkeypatch) as (port, keys, client),
        capturing(keys, port=port, sides=("leader",)) as (capture, _, _),
        asyncio.timeout(5),
    ):
        async with connected(capture.listeners[0].address.port, client) as (reader, writer):
            writer.write(request(3, 0, 1))
            assert await reader.readexactly(len(response(1))) == response(1)
        tls = capture.listeners[0].side.tls
        assert tls.handshakes == {("leader", "client", "ok"): 1, ("leader", "upstream", "ok"): 1}


async def test_connection_made_as_it_steps_out_is_not_carried_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.proxy.capture.capture.REFRESH_SECONDS", 0.01)
    async with (
        broker_with_tls(tmp_path, monkeypatch) as (port, keys, client),
        capturing(keys, port=port, sides=("leader",), when="throttled") as (capture, _, _),
        asyncio.timeout(5),
    ):
        capture.learn(ON_THIS_MACHINE)
        capture.throttle_changed(True)
        while not capture.is_in:
            await settle()
        side = capture.listeners[0].side
        async with connected(capture.listeners[0].address.port) as (reader, writer):
            while not side.stats.connections:
                await settle()
            capture.throttle_changed(False)
            while capture.is_in:
                await settle()
            await writer.start_tls(client, server_hostname="localhost")
            assert await reader.read() == b""
        while side.stats.connections:
            await settle()


async def test_it_stays_out_where_it_cannot_speak_the_brokers_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers would be refused by it, and have it directly."""
    monkeypatch.setattr("weir.proxy.capture.capture.REFRESH_SECONDS", 0.01)
    other = Authority(tmp_path / "other")
    trusted = tmp_path / "trusted.pem"
    shutil.copyfile(other.ca, trusted)
    async with (
        broker_with_tls(tmp_path, monkeypatch, upstream=f'ca = "{trusted}"\n') as (port, keys, _),
        capturing(keys, port=port, sides=("leader",)) as (capture, packet_filter, dropped),
        asyncio.timeout(10),
    ):
        capture.learn(ON_THIS_MACHINE)
        while "fails" not in (capture.not_ready() or ""):
            await settle()
        said = f"nothing is captured: TLS with its own broker, 127.0.0.1:{port}, fails: "
        assert str(capture.not_ready()).startswith(said)
        assert (packet_filter.told, dropped.times, capture.is_in) == ([], 0, False)
        shutil.copyfile(tmp_path / "ca.pem", trusted)
        for one in keys.all_keys:
            one.reload()
        while not capture.is_in:
            await settle()
        assert capture.not_ready() is None


async def test_it_steps_out_where_a_broker_refuses_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.proxy.capture.capture.REFRESH_SECONDS", 0.01)
    monkeypatch.setattr("weir.proxy.capture.tls_trial.LOOK_SECONDS", 0.01)
    async with (
        broker_with_tls(tmp_path, monkeypatch) as (port, keys, _),
        capturing(keys, port=port, sides=("leader",)) as (capture, packet_filter, _),
        asyncio.timeout(10),
    ):
        capture.learn(ON_THIS_MACHINE)
        while not capture.is_in:
            await settle()
        strange = Authority(tmp_path / "other").issue("localhost").together
        shutil.copyfile(strange, keys.all_keys[1].files.certificate or "")
        keys.all_keys[1].reload()
        while capture.is_in:
            await settle()
        assert f"its own broker, 127.0.0.1:{port}, " in str(capture.not_ready())
        assert not packet_filter.is_alive


@pytest.mark.long
async def test_broker_that_does_not_run_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its followers wait for it wherever the sidecar is."""
    monkeypatch.setattr("weir.proxy.capture.capture.REFRESH_SECONDS", 0.01)
    monkeypatch.setattr("weir.proxy.capture.tls_trial.LOOK_SECONDS", 0.01)
    async with contextlib.AsyncExitStack() as until_it_ends:
        port, keys, _ = await until_it_ends.enter_async_context(broker_with_tls(tmp_path, monkeypatch))
        async with capturing(keys, port=port, sides=("leader",)) as (capture, _, _), asyncio.timeout(10):
            capture.learn(ON_THIS_MACHINE)
            while not capture.is_in:
                await settle()
            await until_it_ends.aclose()
            for _ in range(5):
                await settle()
            assert capture.is_in


async def test_it_steps_out_where_no_follower_comes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their certificates have none of allowed_names, say. One that stands has come through."""
    monkeypatch.setattr("weir.proxy.capture.capture.REFRESH_SECONDS", 0.01)
    monkeypatch.setattr("weir.proxy.capture.tls_trial.GRACE_SECONDS", 0.0)
    async with (
        broker_with_tls(tmp_path, monkeypatch, allowed_name="broker-*") as (port, keys, client),
        capturing(keys, port=port, sides=("leader",)) as (capture, packet_filter, _),
        asyncio.timeout(10),
    ):
        capture.learn(ON_THIS_MACHINE)
        while not capture.is_in:
            await settle()
        port = capture.listeners[0].address.port
        for _ in range(3):  # somebody looks what this is, as `weir check` does
            async with connected(port) as (reader, writer):
                writer.write(request(3, 0, 1))
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        for _ in range(3):
            assert capture.is_in
            with contextlib.suppress(OSError):
                async with connected(port, client) as (reader, _):
                    assert await reader.read() == b""
        while capture.is_in:
            await settle()
        assert "no follower came through" in str(capture.not_ready())
        assert not packet_filter.is_alive
        await settle()
        assert not capture.is_in


async def test_refused_stranger_ends_no_capture_before_followers_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool on a broker's machine, say, with a certificate of its own."""
    authority = Authority(tmp_path)
    files = KeyFiles(certificate=authority.issue("localhost").together, ca=authority.ca)
    client = LiveKeys("upstream_tls", files, lambda: load_client_keys(files, checks_name=True))
    clock, stats = MovedClock(), TlsStats()
    async with serving(answering, load_server_keys(files, "required").context) as (_, port):
        trial = TlsTrial((None, TlsClient(client, "localhost")), stats, None, clock)

        async def trouble(seconds: float, *, is_in: bool = True, has_links: bool = False) -> str | None:
            """What it finds `seconds` later, when somebody was refused three times more."""
            clock.move(seconds)
            stats.handshakes["leader", "client", "wrong_name"] += 3
            await trial.check(Address("127.0.0.1", port), is_in=is_in, has_links=has_links)
            return trial.trouble

        assert await trouble(0, is_in=False) is None
        assert [await trouble(1) for _ in range(3)] == [None] * 3
        assert await trouble(1, has_links=True) is None  # the followers are back
        assert await trouble(100, has_links=True) is None
        assert await trouble(4) is None
        assert "no follower came through" in str(await trouble(2))
        assert await trouble(58, is_in=False) is not None, "it waits for a minute"
        assert await trouble(3, is_in=False) is None
