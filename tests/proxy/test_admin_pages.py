# SPDX-License-Identifier: Apache-2.0
"""What a page of another site can send through its visitor's browser: nothing of it changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
import pytest

from tests.fakes.clock import MovedClock
from tests.proxy.administered import Client, Sidecar
from weir.proxy.admin.access import Access
from weir.proxy.admin.http import AdminServer
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Admin
from weir.proxy.log import EventLog

JSON = "application/json"
CHANGES = [
    ("POST", "/v1/capture/pause"),
    ("POST", "/v1/capture/resume"),
    ("POST", "/v1/shares"),
    ("PUT", "/v1/limits"),
    ("PATCH", "/v1/throttle"),
]


async def status(client: Client, method: str, path: str, **headers: str | None) -> int:
    sent = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    left_out = ("Content-Type",) if "Content-Type" not in sent else ()
    async with client.session.request(
        method, client.base + path, data=b"{}", headers=sent, skip_auto_headers=left_out
    ) as response:
        return response.status


@pytest.mark.parametrize(
    "content",
    [
        *(None, "", "text/plain", "text/plain; charset=application/json", "text/json"),
        *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/octet-stream"),
    ],
)
@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_change_without_a_json_content_type_is_refused(
    client: Client, method: str, path: str, content: str | None
) -> None:
    """A page may send those of forms, or none, without being asked. Sidecars up to 0.2 send shares as octets."""
    expected = 200 if path == "/v1/shares" and content == "application/octet-stream" else 415
    assert await status(client, method, path, Content_Type=content) == expected
    assert (client.sidecar.applied, client.sidecar.asked) == ([], [])


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9690", "chrome-extension://abc"])
@pytest.mark.parametrize(("method", "path"), [*CHANGES, ("DELETE", "/v1/throttle")])
async def test_change_that_a_browser_sends_is_refused(client: Client, method: str, path: str, origin: str) -> None:
    assert await status(client, method, path, Content_Type=JSON, Origin=origin) == 403
    assert (client.sidecar.applied, client.sidecar.asked) == ([], [])
    assert await status(client, "GET", "/v1/throttle", Origin=origin) == 200  # it may not read the answer


@pytest.mark.parametrize("content", [JSON, "Application/JSON; charset=utf-8"])
@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_change_in_json_of_a_program_is_made(client: Client, method: str, path: str, content: str) -> None:
    expected = 400 if path == "/v1/limits" else 200  # "{}" has no entries
    assert await status(client, method, path, Content_Type=content) == expected
    assert await status(client, "DELETE", "/v1/throttle") == 200


async def test_refused_change_costs_no_body(client: Client) -> None:
    """It is answered before its body has come."""
    reader, writer = await asyncio.open_connection(*client.base.removeprefix("http://").split(":"))
    head = b"POST /v1/capture/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n"
    writer.write(head + b"Content-Type: text/plain\r\n\r\n")
    async with asyncio.timeout(5):
        assert await reader.readline() == b"HTTP/1.1 415 Unsupported Media Type\r\n"
    writer.close()


HOSTS = {1: "broker-1.kafka.internal"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("evil.example:9690", 421),
        ("broker-1.kafka.internal.evil.example", 421),
        ("kafka1.", 421),
        ("kafka1:9690", 200),
        ("10.1.2.3:9690", 200),
        ("[fd00::1]:9690", 200),
        ("localhost:9690", 200),
        ("Broker-1.kafka.internal:9690", 200),
        ("weir.example:9690", 200),
    ],
)
async def test_open_server_answers_to_names_of_its_network_alone(host: str, expected: int) -> None:
    """A container's port that is published on loopback is reached by any page whose name leads there."""
    admin = Admin(listen=Address("0.0.0.0", 9690), without_tokens=True, names=("weir.example",))
    server = AdminServer(Sidecar(), EventLog(), Access(admin, MovedClock(), hosts=lambda: HOSTS))
    address = await server.start(Address("127.0.0.1", 0))
    headers: Mapping[str, str] = {"Host": host}
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/v1/status", headers=headers) as got:
            assert got.status == expected
        async with session.get(f"http://{address}/healthz", headers=headers) as got:
            assert got.status == 200
    await server.stop()
