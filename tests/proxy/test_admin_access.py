# SPDX-License-Identifier: Apache-2.0
"""Who may ask the admin HTTP for what: tokens, names, and how often a token may be guessed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.fakes.clock import MovedClock
from tests.proxy.administered import Sidecar
from weir.proxy.admin.access import Access
from weir.proxy.admin.http import AdminServer
from weir.proxy.admin.tokens import TokenFile
from weir.proxy.config.address import Address
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Admin
from weir.proxy.log import EventLog

READ, WRITE = "read-read-read-read", "write-write-write-write"
OPEN = "/healthz"
INGRESS = 'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:1"\nupstream = "127.0.0.1:2"\n'


def tokens(directory: Path) -> Admin:
    (directory / "read").write_text(READ + "\n")
    (directory / "write").write_text(WRITE + "\n")
    return Admin(read_token_file=str(directory / "read"), write_token_file=str(directory / "write"))


@dataclass
class Asked:
    """A running server, and the clock by which its wrong tokens are forgotten."""

    base: str
    clock: MovedClock
    access: Access
    session: aiohttp.ClientSession

    async def status(self, method: str, path: str, token: str = "", headers: Mapping[str, str] | None = None) -> int:
        sent = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        url = self.base + path
        async with self.session.request(method, url, headers={**sent, **(headers or {})}, data="{}") as response:
            await response.read()
            return response.status


@pytest_asyncio.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    clock = MovedClock()
    access = Access(tokens(tmp_path), clock)
    server = AdminServer(Sidecar(), EventLog(), access)
    address = await server.start(Address("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session:
        yield Asked(f"http://{address}", clock, access, session)
    await server.stop()


@pytest.mark.parametrize(
    ("token", "read", "changed"), [("", 401, 401), (READ, 200, 403), (WRITE, 200, 200), (WRITE + "x", 401, 401)]
)
async def test_token_opens_what_it_is_for(asked: Asked, token: str, read: int, changed: int) -> None:
    for path in ("/v1/throttle", "/v1/status", "/v1/limits", "/metrics", "/"):
        assert await asked.status("GET", path, token) == read, path
    for method, path in (("PUT", "/v1/throttle"), ("PATCH", "/v1/throttle"), ("DELETE", "/v1/limits")):
        assert await asked.status(method, path, token) == changed, path
    assert await asked.status("POST", "/v1/shares", token) == changed
    assert await asked.status("GET", "/healthz") == await asked.status("GET", "/readyz") == 200


async def test_each_scheme_is_asked_for_in_a_line_of_its_own(asked: Asked) -> None:
    """Chromium, asked for two in one line, shows an error and no dialog."""
    async with asked.session.get(f"{asked.base}/") as response:
        assert response.status == 401
        assert response.headers.getall("WWW-Authenticate") == ['Basic realm="weir"', 'Bearer realm="weir"']


async def test_browser_with_a_token_as_password_may_read_only(asked: Asked) -> None:
    basic = {"Authorization": "Basic " + base64.b64encode(f"ann:{WRITE}".encode()).decode()}
    assert await asked.status("GET", "/", headers=basic) == 200
    assert await asked.status("DELETE", "/v1/throttle", headers=basic) == 401


@pytest.mark.parametrize(
    "header", ["Basic %%%", "Basic", "Bearer", "Digest x", "Bearer \u00e9" * 20, "Basic " + "A" * 7000]
)
async def test_header_of_another_form_is_no_token(asked: Asked, header: str) -> None:
    assert await asked.status("GET", "/v1/status", headers={"Authorization": header}) == 401


async def test_right_token_passes_whatever_wrong_ones_came_from_its_address(
    asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """Wrong ones are counted, and logged once in ten seconds."""
    caplog.set_level("WARNING")
    for _ in range(50):
        assert await asked.status("GET", "/v1/status", "guess-guess-guess-1") == 401
    assert await asked.status("GET", "/v1/status", READ) == 200
    assert await asked.status("DELETE", "/v1/throttle", WRITE) == 200
    assert asked.access.refused["wrong_token"] == 50
    (line,) = [vars(record)["weir_fields"] for record in caplog.records if record.msg == "admin_refused"]
    assert line == {"reason": "wrong_token", "client": "127.0.0.1", "method": "GET", "path": "'/v1/status'"}


async def test_token_is_replaced_while_the_server_runs(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "read").write_text("another-another-another")
    asked.clock.move(2)
    assert await asked.status("GET", "/v1/status", READ) == 401
    assert await asked.status("GET", "/v1/status", "another-another-another") == 200
    (tmp_path / "read").unlink()
    asked.clock.move(2)
    assert await asked.status("GET", "/v1/status", "another-another-another") == 401


@pytest.mark.parametrize("text", ["", "short", "with a space in the middle of it", "\x00" * 20, "ü" * 20])
def test_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="holds no token"):
        TokenFile(str(tmp_path / "token"), "admin.read_token_file", MovedClock())
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenFile(str(tmp_path / "missing"), "admin.read_token_file", MovedClock())


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("127.0.0.1:9690", 200),
        ("[::1]:9690", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("broker-1:9690", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9690", 421),
    ],
)
async def test_server_on_loopback_answers_to_its_own_names_alone(name: str, status: int) -> None:
    """A page that has its name lead to loopback cannot use its visitor's browser."""
    server = AdminServer(Sidecar(), EventLog(), Access(Admin(names=("broker-1",)), MovedClock()))
    address = await server.start(Address("127.0.0.1", 0))
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/v1/status", headers={"Host": name}) as got,
    ):
        assert got.status == status
    await server.stop()


def test_address_that_others_reach_needs_tokens() -> None:
    for address in ("127.0.0.1:9690", "[::1]:9690", "localhost:9690"):
        parse_config(f'{INGRESS}[admin]\nlisten = "{address}"\n')
    with pytest.raises(ConfigError, match="without_tokens"):
        parse_config(f'{INGRESS}[admin]\nlisten = "0.0.0.0:9690"\nread_token_file = "a"\n')
    for settings in ('read_token_file = "a"\nwrite_token_file = "b"\n', "without_tokens = true\n"):
        parse_config(f'{INGRESS}[admin]\nlisten = "0.0.0.0:9690"\n{settings}')
