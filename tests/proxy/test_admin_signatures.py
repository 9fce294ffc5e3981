# SPDX-License-Identifier: Apache-2.0
"""Sidecars among themselves: what they send opens one request at one of them, and no token leaves the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.fakes.clock import MovedClock
from tests.proxy.administered import Sidecar
from tests.proxy.test_admin_access import READ, WRITE, tokens
from weir.proxy.admin.access import Access
from weir.proxy.admin.fleet import Fleet, Target
from weir.proxy.admin.http import AdminServer
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Admin, Config
from weir.proxy.log import EventLog
from weir.proxy.shares.exchange import Exchange, ShareRequest

SHARES, STATUS = "/v1/shares", "/v1/status"
BODY = b'{"broker_id": 1}'


def access(directory: Path, broker_id: int, now: MovedClock | None = None) -> Access:
    return Access(tokens(directory), MovedClock(), broker_id=broker_id, now=now or MovedClock())


@asynccontextmanager
async def served(access: Access) -> AsyncIterator[Address]:
    server = AdminServer(Sidecar(), EventLog(), access)
    yield await server.start(Address("127.0.0.1", 0))
    await server.stop()


async def status(address: Address, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> int:
    sent = {"Content-Type": "application/json", **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{address}{path}", data=body, headers=sent) as got,
    ):
        return got.status


@pytest.mark.parametrize("to", [2, None])
async def test_signature_opens_what_it_signs_and_nothing_else(tmp_path: Path, to: int | None) -> None:
    sender, receiver = access(tmp_path, 1), access(tmp_path, 2)
    posted, got = sender.sign("POST", SHARES, BODY, to), sender.sign("GET", STATUS, b"", to)
    async with served(receiver) as address:
        assert await status(address, "POST", SHARES, BODY, posted) == 200
        assert await status(address, "GET", STATUS, b"", got) == 200
        assert await status(address, "POST", SHARES, BODY.replace(b"1", b"3"), posted) == 403
        for method, path in (("GET", STATUS), ("PATCH", "/v1/throttle"), ("POST", "/v1/capture/pause")):
            assert await status(address, method, path, BODY, posted) == 401, path
            wide = sender.sign(method, path, BODY, to)
            assert await status(address, method, path, BODY, wide) == (200 if path == STATUS else 401), path
        assert await status(address, "POST", SHARES, b"", got) == 401
    async with served(access(tmp_path, 3)) as address:  # whom it was not for
        assert await status(address, "POST", SHARES, BODY, posted) == (401 if to == 2 else 200)
    assert receiver.refused["wrong_signature"] == 6


@pytest.mark.parametrize(("seconds", "expected"), [(0, 200), (29, 200), (-29, 200), (32, 401), (-32, 401)])
async def test_signature_holds_for_half_a_minute(tmp_path: Path, seconds: float, expected: int) -> None:
    now = MovedClock(1_800_000_000.5)
    headers = access(tmp_path, 1, now).sign("POST", SHARES, BODY, 2)
    async with served(access(tmp_path, 2, now)) as address:
        now.move(seconds)
        assert await status(address, "POST", SHARES, BODY, headers) == expected


@pytest.mark.parametrize(
    "given", ["", "to=2", f"to=2 at=1000 body={'0' * 64} mac={'0' * 64}", "to=any at=x body= mac=", WRITE, "é" * 9]
)
async def test_header_that_is_no_signature_opens_nothing(tmp_path: Path, given: str) -> None:
    async with served(access(tmp_path, 2)) as address:
        assert await status(address, "POST", SHARES, BODY, {"Authorization": f"Weir {given}"}) == 401


async def test_read_tokens_signature_opens_no_share(tmp_path: Path) -> None:
    tokens(tmp_path)
    reader = Access(Admin(write_token_file=str(tmp_path / "read")), MovedClock(), now=MovedClock())
    async with served(access(tmp_path, 2)) as address:
        assert await status(address, "POST", SHARES, BODY, reader.sign("POST", SHARES, BODY, 2)) == 401
        assert await status(address, "GET", STATUS, b"", reader.sign("GET", STATUS, b"", 2)) == 200


async def test_sidecar_of_before_opens_shares_with_its_token(tmp_path: Path) -> None:
    """While a cluster is upgraded, it sends its write token, and shares as octets."""
    headers = {"Authorization": f"Bearer {WRITE}", "Content-Type": "application/octet-stream"}
    async with served(access(tmp_path, 2)) as address:
        assert await status(address, "POST", SHARES, BODY, headers) == 200


async def test_token_is_replaced_in_all_sidecars_one_by_one(tmp_path: Path) -> None:
    """The first line signs, and each opens."""
    sender = access(tmp_path, 1)
    (tmp_path / "new").mkdir()
    admin = tokens(tmp_path / "new")
    (tmp_path / "new" / "write").write_text(f"new: another-token-of-all\nold: {WRITE}\n")
    async with served(Access(admin, MovedClock(), broker_id=2, now=MovedClock())) as address:
        assert await status(address, "POST", SHARES, BODY, sender.sign("POST", SHARES, BODY, 2)) == 200


async def test_host_that_metadata_names_learns_no_token(tmp_path: Path) -> None:
    """It listens where a broker's sidecar is expected, and keeps all that it is sent."""
    heard: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append(f"{request.raw_headers!r} {await request.text()}")
        return web.json_response({"broker_id": 2, "words": {}, "refused": {}})

    app, own = web.Application(), access(tmp_path, 1)
    app.router.add_route("*", "/{rest:.*}", listen)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = Address(*runner.addresses[0][:2])

    async def targets() -> list[Target]:
        return [Target(address, 2)]

    async def status_of_own() -> dict[str, object]:
        return {}

    exchange = Exchange(1, (), targets, EventLog(), sign=own.sign)
    await exchange._send(address, ShareRequest(broker_id=1), 2)
    await exchange.close()
    await Fleet(Config(broker_id=1, admin=Admin(fleet=(address,))), dict, status_of_own, MovedClock(), own.sign).rows()
    await runner.cleanup()
    assert len(heard) == 2 and all("Weir to=" in one for one in heard)
    assert not any(secret in one for one in heard for secret in (READ, WRITE))


async def test_sidecars_with_one_token_open_each_other(tmp_path: Path) -> None:
    receiver = access(tmp_path, 2)

    async def nothing() -> dict[str, object]:
        return {}

    async def nobody() -> list[Target]:
        return []

    async with served(receiver) as address:
        config = Config(broker_id=1, admin=Admin(fleet=(address,)))
        (row,) = await Fleet(config, dict, nothing, MovedClock(), access(tmp_path, 1).sign).rows()
        assert "no sidecar of this version" in row["error"]  # the stand-in's status has another form: it was let in
        (row,) = await Fleet(config, dict, nothing, MovedClock()).rows()
        assert "401" in row["error"]
        exchange = Exchange(1, (), nobody, EventLog(), sign=access(tmp_path, 1).sign)
        assert (await exchange._send(address, ShareRequest(broker_id=1), 2)).broker_id == 1
        await exchange.close()
