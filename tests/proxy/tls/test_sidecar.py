# SPDX-License-Identifier: Apache-2.0
"""Two sidecars as a whole with TLS between them, and one that ends TLS itself, from their configuration files on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.pki import Issued
from tests.fakes.servers import connected, serving
from tests.protocol.wire import request, response
from tests.proxy.limited import SOURCE, produce
from tests.proxy.tls.securing import BROKER, FOLLOWER, Keys
from weir.proxy.config.address import Address
from weir.proxy.config.load import parse_config
from weir.proxy.sidecar import Sidecar
from weir.proxy.tls.keys import load_client_keys, load_server_keys

ADMIN = '[admin]\nlisten = "127.0.0.1:0"\n'


@contextlib.asynccontextmanager
async def started(text: str) -> AsyncIterator[Sidecar]:
    """A sidecar that serves."""
    sidecar = Sidecar(parse_config(text + ADMIN), "1.2.3")
    await sidecar.start()
    try:
        yield sidecar
    finally:
        await sidecar.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A broker that answers each request."""
    try:
        while data := await reader.read(1000):
            writer.write(response(int.from_bytes(data[8:12], "big")))
    except OSError:
        pass
    finally:
        writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """One round trip."""
    writer.write(request(3, 0, number))
    async with asyncio.timeout(5):
        assert await reader.readexactly(len(response(number))) == response(number)


def replace(old: Issued, new: Issued) -> None:
    """Put a new keystore in an old one's place."""
    Path(new.keystore).replace(old.keystore)


async def metrics_of(sidecar: Sidecar) -> str:
    return b"".join(sidecar.shown.metrics("")).decode()


def address_of(sidecar: Sidecar) -> Address:
    return sidecar.listeners[0].address


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
async def test_two_sidecars_speak_tls_around_a_plaintext_broker(tmp_path: Path, workers: int) -> None:
    """They take new keys while they run."""
    keys = Keys(tmp_path)
    table = f'workers = {workers}\nca = "{keys.authority.ca}"\nallowed_names = ["{BROKER}", "{FOLLOWER}"]\n'
    async with serving(answer) as (_, port):
        leaders = f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:{port}"\n'
        leaders += f'[tls]\nkeystore = "{keys.broker.keystore}"\n{table}'
        async with started(leaders) as leader:
            followers = (
                f'broker_id = 2\n[[egress]]\npeer = 1\nlisten = "127.0.0.1:0"\nupstream = "{address_of(leader)}"\n'
            )
            followers += f'[tls]\ncertificate = "{keys.follower.together}"\nmode = "require"\n{table}'
            async with started(followers) as follower:
                there = address_of(follower)
                standing = await asyncio.open_connection(there.host, there.port)
                await ask(*standing, 1)
                replace(keys.broker, keys.authority.issue("somebody.test"))
                await leader._key_watch.check()
                refused, writer = await asyncio.open_connection(there.host, there.port)
                writer.write(request(3, 0, 2))
                with contextlib.suppress(ConnectionResetError):
                    async with asyncio.timeout(5):
                        assert await refused.read(1) == b""
                writer.close()
                await ask(*standing, 3)
                standing[1].close()
                assert (await leader.shown.status())["routes"][0]["tls"] == "taken"
                assert (await follower.shown.status())["routes"][0]["upstream_tls"] == "required"
                shown = await metrics_of(follower)
                assert 'weir_tls_certificate_expiry_seconds{keys="tls"} 2' in shown
                assert 'weir_tls_handshakes_total{end="upstream",result="ok",side="follower"} 1.0' in shown
                assert 'weir_tls_handshakes_total{end="upstream",result="wrong_name",side="follower"} 1.0' in shown
                assert 'weir_tls_plaintext_total{side="follower"} 0.0' in shown
                assert [one.cpu_seconds() > 0 for one in follower.tls_workers.workers] == [True] * workers


async def test_clients_of_one_application_pass_and_are_limited(tmp_path: Path) -> None:
    """An ingress of its own: those whose certificates it allows are, for the broker, the principal that it names."""
    keys = Keys(tmp_path)
    task, application = keys.authority.issue("task-7.s3.test"), keys.authority.issue("s3.test")
    seen: list[object] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(dict(one[0] for one in writer.get_extra_info("peercert")["subject"])["commonName"])
        with contextlib.suppress(asyncio.IncompleteReadError):
            while size := int.from_bytes(await reader.readexactly(4), "big"):
                writer.write(response(int.from_bytes((await reader.readexactly(size))[4:8], "big")))
        writer.close()

    async with serving(broker, load_server_keys(keys.files(keys.broker), "required").context) as (_, port):
        text = f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:{port}"\n'
        text += f'[ingress.tls]\ncertificate = "{keys.broker.together}"\nca = "{keys.authority.ca}"\n'
        text += 'client_auth = "required"\nallowed_names = ["*.s3.test"]\n[ingress.upstream_tls]\n'
        text += f'certificate = "{application.together}"\nserver_name = "{BROKER}"\n'
        text += f'[[limits.client]]\nclient_id = "{SOURCE}"\n"record.rate.limit" = 1000\n'
        async with started(text) as sidecar:
            there = address_of(sidecar)
            context = load_client_keys(keys.files(task), checks_name=True).context
            async with connected(there.port, context, BROKER) as (reader, writer):
                begin = asyncio.get_running_loop().time()
                for number in range(2):
                    writer.write(produce(number, 400))
                    async with asyncio.timeout(5):
                        assert await reader.readexactly(len(response(number))) == response(number)
                assert asyncio.get_running_loop().time() - begin >= 0.39  # what the first one brought
    assert set(seen) == {"s3.test"}


@pytest.mark.parametrize("route", ["ingress", "egress"])
async def test_route_ends_tls_and_begins_it_again(tmp_path: Path, route: str) -> None:
    """An egress needs a certificate with its peer's name for it; an ingress has the broker's own."""
    keys = Keys(tmp_path)
    async with serving(answer, load_server_keys(keys.files(keys.broker), "required").context) as (_, port):
        text = f'broker_id = 2\n[[{route}]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:{port}"\n'
        text += "peer = 1\n" if route == "egress" else ""
        text += f'[{route}.tls]\ncertificate = "{keys.broker.together}"\nca = "{keys.authority.ca}"\n'
        text += f'client_auth = "required"\nallowed_names = ["{FOLLOWER}"]\n[{route}.upstream_tls]\n'
        text += f'certificate = "{keys.follower.together}"\nserver_name = "{BROKER}"\n'
        async with started(text) as sidecar:
            there = address_of(sidecar)
            context = load_client_keys(keys.files(keys.follower), checks_name=True).context
            async with connected(there.port, context, BROKER) as streams:
                await ask(*streams, 1)
            status = await sidecar.shown.status()
            assert status["ready"], status["not_ready"]
            assert (status["routes"][0]["tls"], status["routes"][0]["upstream_tls"]) == ("required", "required")
