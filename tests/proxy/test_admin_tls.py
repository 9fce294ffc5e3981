# SPDX-License-Identifier: Apache-2.0
"""`[admin.tls]`: certificates in place of tokens, for people, for other sidecars and for the command line."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.fakes.clock import MovedClock
from tests.fakes.pki import Authority, Issued
from tests.fakes.servers import serving
from tests.proxy.administered import Sidecar
from tests.proxy.test_server import text
from weir.cli.checkup import own_tls, running_sidecar
from weir.cli.doctor import _seconds_ahead
from weir.cli.errors import CommandError
from weir.cli.sidecars import ask
from weir.proxy.admin.access import Access
from weir.proxy.admin.fleet import Fleet
from weir.proxy.admin.http import AdminServer
from weir.proxy.config.address import Address
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Admin, Config
from weir.proxy.config.tls import AdminTlsTable
from weir.proxy.log import EventLog
from weir.proxy.shares.exchange import Exchange, ShareRequest
from weir.proxy.sidecar import Sidecar as RealSidecar

INGRESS = (
    'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:1"\nupstream = "127.0.0.1:2"\n[admin]\nlisten = "0.0.0.0:3"\n'
)


@dataclass
class Secured:
    """A running server with TLS, and who signs certificates for it."""

    address: Address
    authority: Authority
    access: Access
    own: Issued

    def client_context(self) -> ssl.SSLContext:
        assert self.access.keys is not None
        return self.access.keys.client_context()

    def context(self, shown: Issued | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.ca)
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return context

    async def status(self, shown: Issued | None, method: str, path: str, **headers: str) -> int:
        url, context = f"https://{self.address}{path}", self.context(shown)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json={}, ssl=context, headers=headers) as response,
        ):
            return response.status


@pytest_asyncio.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "keys")
    own = authority.issue("weir-1.internal", names=["weir-1.internal", "127.0.0.1"])
    access = Access(Admin(tls=table(authority, own)), MovedClock(), strict_tls=True)
    server = AdminServer(Sidecar(), EventLog(), access)
    address = await server.start(Address("127.0.0.1", 0))
    yield Secured(address, authority, access, own)
    await server.stop()


def table(authority: Authority, own: Issued) -> AdminTlsTable:
    return AdminTlsTable(
        certificate=own.certificate,
        key=own.key,
        ca=authority.ca,
        read_names=("prometheus",),
        write_names=("weir-*.internal", "ann"),
    )


@pytest.mark.parametrize(
    ("name", "read", "changed"), [(None, 403, 403), ("prometheus", 200, 403), ("ann", 200, 200), ("bob", 403, 403)]
)
async def test_certificate_opens_what_its_name_is_for(
    secured: Secured, name: str | None, read: int, changed: int
) -> None:
    shown = None if name is None else secured.authority.issue(name)
    assert await secured.status(shown, "GET", "/v1/status") == read
    assert await secured.status(shown, "PATCH", "/v1/throttle") == changed
    assert await secured.status(shown, "POST", "/v1/shares") == changed
    assert await secured.status(shown, "GET", "/healthz") == await secured.status(shown, "GET", "/readyz") == 200


async def test_certificate_of_somebody_else_is_not_taken(secured: Secured, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other").issue("ann")
    with pytest.raises((aiohttp.ClientError, OSError)):
        await secured.status(stranger, "GET", "/v1/status")


async def test_browser_with_certificate_changes_nothing_cross_site(secured: Secured) -> None:
    """A page of another site may not use the certificate to change anything."""
    ann = secured.authority.issue("ann")
    assert await secured.status(ann, "GET", "/", Origin="https://evil.example") == 200
    assert await secured.status(ann, "POST", "/v1/shares", Origin="https://evil.example") == 403


async def test_new_connections_use_the_keys_that_the_files_have_now(secured: Secured) -> None:
    new = secured.authority.issue("weir-2.internal", names=["weir-2.internal", "127.0.0.1"])
    for mine, its in ((secured.own.certificate, new.certificate), (secured.own.key, new.key)):
        shutil.copy(its, mine)
    assert secured.access.keys is not None
    assert [keys.reload() for keys in secured.access.keys.all_keys] == [True, True]
    context = secured.context(new)
    reader, writer = await asyncio.open_connection("127.0.0.1", secured.address.port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    assert ("DNS", "weir-2.internal") in certificate["subjectAltName"]
    writer.write(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def test_sidecars_ask_each_other_with_their_own_certificates(secured: Secured) -> None:
    config = Config(broker_id=1, admin=Admin(fleet=(secured.address,)))

    async def own() -> dict[str, object]:
        return {}

    (row,) = await Fleet(config, dict, own, MovedClock(), tls=secured.client_context).rows()
    assert "answers with" not in str(row.get("error")) and "TLS" not in str(row.get("error"))
    (row,) = await Fleet(config, dict, own, MovedClock()).rows()
    assert "error" in row

    async def nobody() -> list[object]:
        return []

    exchange = Exchange(1, (), nobody, EventLog(), tls=secured.client_context)  # type: ignore[arg-type]
    await exchange._send(secured.address, ShareRequest(broker_id=1), None)
    await exchange.close()


async def test_sidecar_asks_no_one_whose_certificate_is_no_sidecars(secured: Secured, tmp_path: Path) -> None:
    impostor = secured.authority.issue("prometheus", names=["prometheus", "127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(impostor.certificate, impostor.key)
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(10))
        writer.close()

    async with serving(serve, context) as (_, port), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"https://127.0.0.1:{port}/v1/status", ssl=secured.client_context())
    assert asked in ([], [b""])


async def test_command_line_shows_the_certificate_that_variables_name(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = secured.authority.issue("ann")
    monkeypatch.setenv("WEIR_CA_FILE", secured.authority.ca)
    refused = await asyncio.to_thread(ask, secured.address, "GET", "/v1/status")
    assert "show a certificate" in (refused.error or "")
    monkeypatch.setenv("WEIR_CERTIFICATE_FILE", ann.together)
    assert (await asyncio.to_thread(ask, secured.address, "GET", "/v1/status")).error is None
    monkeypatch.setenv("WEIR_CERTIFICATE_FILE", ann.certificate)
    monkeypatch.setenv("WEIR_KEY_FILE", ann.key)
    assert (await asyncio.to_thread(ask, secured.address, "PATCH", "/v1/throttle", {})).error is None
    monkeypatch.setenv("WEIR_CA_FILE", "/nowhere.pem")
    with pytest.raises(CommandError, match=r"WEIR_CA_FILE names /nowhere.pem, which cannot be used"):
        ask(secured.address, "GET", "/v1/status")


async def test_checks_of_a_file_with_tls_ask_as_its_sidecar_does(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEIR_CA_FILE", raising=False)
    config = Config(broker_id=1, admin=Admin(listen=secured.address, tls=table(secured.authority, secured.own)))
    assert await asyncio.to_thread(running_sidecar, config) is not None
    ahead = await asyncio.to_thread(_seconds_ahead, secured.address, own_tls(config))
    assert ahead is not None and abs(ahead) < 60
    assert await asyncio.to_thread(_seconds_ahead, secured.address, None) is None


def test_tls_needs_no_token_and_what_is_missing_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("weir-1.internal")
    keys = f'[admin.tls]\ncertificate = "{own.together}"\n'
    parse_config(f'{INGRESS}{keys}ca = "{authority.ca}"\nwrite_names = ["weir-*"]\n')
    for more, field in (("", "admin.tls.ca"), (f'ca = "{authority.ca}"\n', "admin.tls.write_names")):
        with pytest.raises(ConfigError) as error:
            parse_config(INGRESS + keys + more)
        assert error.value.field == field


async def test_sidecar_admin_has_tls_and_tells_certificate_expiry(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("weir-1.internal", names=["weir-1.internal", "127.0.0.1"])
    tls = f'''
    [admin.tls]
    certificate = "{own.certificate}"
    key = "{own.key}"
    ca = "{authority.ca}"
    write_names = ["weir-*.internal"]
    '''
    weir = RealSidecar(parse_config(text(more=tls)), "1")
    await weir.start()
    context = ssl.create_default_context(cafile=authority.ca)
    context.load_cert_chain(own.certificate, own.key)
    try:
        async with aiohttp.ClientSession() as session:
            url = f"https://{weir.admin_address}"
            async with session.get(f"{url}/metrics", ssl=context) as response:
                assert "weir_tls_certificate_expiry_seconds{" in await response.text()
            async with session.patch(f"{url}/v1/throttle", json={}, ssl=context) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{weir.admin_address}/healthz")
    finally:
        await weir.close()
