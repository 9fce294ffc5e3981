# SPDX-License-Identifier: Apache-2.0
"""The admin HTTP API over a real socket: the calls of docs/running.md, their refusals and bounds."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
import yarl

from tests.proxy.administered import Client
from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.proxy.admin import exposition
from weir.proxy.admin import http as admin
from weir.proxy.admin.bodies import MAX_BODY_BYTES
from weir.proxy.config.address import Address
from weir.proxy.config.client_limits import read_client_limits
from weir.proxy.config.tables import ThrottleTable


async def test_admin_healthz_is_200_while_the_process_runs(client: Client) -> None:
    client.sidecar.reasons = ["nothing is ready"]
    assert await client.call("GET", "/healthz") == (200, {"status": "ok"})


async def test_admin_takes_many_connections_before_it_accepts_any(client: Client) -> None:
    """Which a crowd that connects and says nothing would otherwise keep a probe from."""
    address = yarl.URL(client.base)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(socket.socket()) for _ in range(50)]
        for one in crowd:  # nothing is awaited, so nothing is accepted
            one.settimeout(0.2)
            one.connect((address.host, address.port))
        assert (await client.call("GET", "/healthz"))[0] == 200
    await asyncio.sleep(0.05)  # until the crowd's sockets are closed at this end, too


async def test_admin_readyz_ready_is_200(client: Client) -> None:
    assert await client.call("GET", "/readyz") == (200, {"status": "ready"})


async def test_admin_readyz_not_ready_is_503_and_says_why(client: Client) -> None:
    client.sidecar.reasons = ["upstream 127.0.0.1:1 cannot be reached"]
    assert await client.call("GET", "/readyz") == (
        503,
        {"status": "not ready", "reasons": ["upstream 127.0.0.1:1 cannot be reached"]},
    )


async def test_admin_metrics_are_streamed_in_the_format_asked_for(client: Client) -> None:
    async with client.session.get(client.base + "/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert await response.read() == b"weir_a 1\nweir_b 2\n"
    headers = {"Accept": "application/openmetrics-text;version=1.0.0"}
    async with client.session.get(client.base + "/metrics", headers=headers) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")


async def test_admin_client_that_leaves_amid_a_scrape_is_no_error(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, scraping = await _scrape_and_read_nothing(client, monkeypatch)
    scraping.transport.abort()
    async with asyncio.timeout(5):
        await _until(lambda: not client.scrapes._written)
        assert (await client.call("GET", "/healthz"))[0] == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_admin_client_reading_no_metrics_is_cut_off_for_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cut off once others need the room."""
    monkeypatch.setattr(exposition, "MOST_UNREAD", 0)
    reader, scraping = await _scrape_and_read_nothing(client, monkeypatch)
    async with asyncio.timeout(5):
        headers = {"Accept": "application/openmetrics-text;version=1.0.0"}  # for which the metrics are rendered anew
        async with client.session.get(client.base + "/metrics", headers=headers) as response:
            assert len(await response.read()) == len(_LARGE) * 400
        await _until(lambda: not client.scrapes._written)
        scraping.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await reader.read()) < len(_LARGE) * 400
        scraping.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


_LARGE = b"weir_a 1\n" * 10_000


async def _scrape_and_read_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A scrape of 36 MB, more than sockets keep, whose writing has stopped half way."""
    monkeypatch.setattr(client.sidecar, "parts", [_LARGE] * 400)
    address = yarl.URL(client.base)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(5):
        await _until(lambda: bool(client.scrapes._written))
    return reader, writer


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)


async def test_admin_status_is_json(client: Client) -> None:
    assert await client.call("GET", "/v1/status") == (200, {"broker_id": 1})


async def test_admin_page_says_what_it_may_do(client: Client) -> None:
    async with client.session.get(client.base + "/") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "frame-ancestors 'none'" in policy
        assert "<title>weir</title>" in await response.text()


async def test_admin_history_is_json_and_asks_for_seconds(client: Client) -> None:
    assert await client.call("GET", "/v1/history?after=5") == (200, {"now": 7.0, "sides": {}})
    status, body = await client.call("GET", "/v1/history?after=x")
    assert (status, body["field"]) == (400, "after")


async def test_admin_fleet_without_a_cluster_is_refused(client: Client) -> None:
    status, body = await client.call("GET", "/v1/fleet")
    assert (status, body["field"]) == (400, "cluster")


async def test_admin_throttle_get_shows_the_table_and_its_sources(client: Client) -> None:
    status, body = await client.call("GET", "/v1/throttle")
    assert (status, body[LEADER_RATE], body["topics"]["orders"][LEADER_REPLICAS]) == (200, 5000000, "*")
    assert body["sources"][LEADER_RATE] == "file"


async def test_admin_throttle_put_replaces_at_once(client: Client) -> None:
    status, body = await client.call("PUT", "/v1/throttle", {LEADER_RATE: 7})
    assert [layer["source"] for layer in body.pop("layers")] == ["file", "http"]
    assert (status, body) == (200, {LEADER_RATE: 7, "topics": {}, "sources": {LEADER_RATE: "http"}})
    assert [table.leader_rate for table in client.sidecar.applied] == [7]


async def test_admin_throttle_patch_merges_and_null_removes(client: Client) -> None:
    status, body = await client.call(
        "PATCH", "/v1/throttle", {LEADER_RATE: None, "topics": {"a": {LEADER_REPLICAS: "*"}}}
    )
    assert status == 200
    assert LEADER_RATE not in body
    assert set(body["topics"]) == {"orders", "a"}


async def test_admin_throttle_delete_throttles_nothing(client: Client) -> None:
    status, body = await client.call("DELETE", "/v1/throttle")
    assert body.pop("layers")[-1] == {"source": "http", "parts": [{"part": "*", "removed": True}]}
    assert (status, body) == (200, {"topics": {}, "sources": {}})
    assert client.sidecar.applied == [ThrottleTable()]


async def test_admin_throttle_delete_of_http_puts_the_file_in_force(client: Client) -> None:
    before = await client.call("GET", "/v1/throttle")
    await client.call("DELETE", "/v1/throttle")
    await client.call("PATCH", "/v1/throttle", {LEADER_RATE: 7, "topics": {"a": {LEADER_REPLICAS: "*"}}})
    assert await client.call("DELETE", "/v1/throttle?source=http") == before
    status, body = await client.call("DELETE", "/v1/throttle?source=file")
    assert (status, body["field"]) == (400, "source")


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"leader.replication.throttled.rate": -1}', LEADER_RATE),
        (b'{"leader.replication.throttled.rte": 1}', "leader.replication.throttled.rte"),
        (b'{"topics": {"a": {"leader.replication.throttled.replicas": "1:"}}}', f"topics.a.{LEADER_REPLICAS}"),
        (b'{"a\\nb": 1}', "'a\\nb'"),
        (b'{"leader.replication.throttled.rate": 1, "leader.replication.throttled.rate": 2}', LEADER_RATE),
        (b'{"topics": {"a": {}, "b": {}, "a": {}}}', "a"),
        (b'{"topics": {"\\ud800": {}}}', "body"),
        (b"[]", "body"),
        (b"", "body"),
        (b"{", "body"),
        (b"\xff", "body"),
        (b'{"leader.replication.throttled.rate": NaN}', "body"),
        (b'{"leader.replication.throttled.rate": 1e400}', "body"),
        (b"[" * 200_000, "body"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_admin_throttle_bad_input_is_400_and_changes_nothing(
    client: Client, method: str, raw: bytes, field: str
) -> None:
    """The answer names the field."""
    before = await client.call("GET", "/v1/throttle")
    status, body = await client.call(method, "/v1/throttle", raw=raw)
    assert (status, body["field"]) == (400, field)
    assert set(body) == {"error", "field"}
    assert re.search(r"[^.?][.?]$", body["error"])
    assert body["error"].count("\n") == 0
    assert await client.call("GET", "/v1/throttle") == before
    assert client.sidecar.applied == []


async def test_admin_compressed_body_is_refused_before_unpacking(client: Client) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    bomb = io.BytesIO(gzip.compress(b" " * (MAX_BODY_BYTES - 1)))
    async with client.session.put(f"{client.base}/v1/throttle", data=bomb, headers=headers) as response:
        assert response.status == 415
        assert "uncompressed" in json.loads(await response.read())["error"]
    assert client.sidecar.applied == []


async def test_admin_body_too_large_is_refused_unread(client: Client) -> None:
    status, body = await client.call("PUT", "/v1/throttle", raw=b" " * (MAX_BODY_BYTES + 1))
    assert status == 413
    assert "error" in body
    assert client.sidecar.applied == []


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("POST", "/v1/throttle", 405), ("PUT", "/metrics", 405)]
)
async def test_admin_unknown_call_is_refused_in_json(client: Client, method: str, path: str, status: int) -> None:
    found, body = await client.call(method, path)
    assert found == status
    assert path in body["error"]


@pytest.mark.long
async def test_admin_changes_at_the_same_time_are_each_whole(client: Client) -> None:
    patches = [client.call("PATCH", "/v1/throttle", {"topics": {f"t{n}": {LEADER_REPLICAS: "*"}}}) for n in range(20)]
    assert {status for status, _ in await asyncio.gather(*patches)} == {200}
    assert len(client.sidecar.throttle.table.topics) == 21


async def test_admin_connections_beyond_the_limit_close_the_oldest(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that never ask anything keep neither descriptors nor the operator from the sidecar."""
    monkeypatch.setattr(admin, "MAX_CONNECTIONS", 3)
    address = Address.parse(client.base.removeprefix("http://"))
    silent = []
    for _ in range(5):
        silent.append(await asyncio.open_connection(address.host, address.port))
        await asyncio.sleep(0.01)  # each is taken before the next one comes
    assert await client.call("GET", "/healthz") == (200, {"status": "ok"})
    async with asyncio.timeout(5):
        for reader, _ in silent[:3]:
            assert await reader.read() == b""
    for reader, writer in silent[3:]:
        assert not reader.at_eof()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    for _, writer in silent:
        writer.close()


SINKS = {"client_id": "connector-consumer-*", "record.rate.limit": 1000, "per": "connector"}


async def limits(client: Client, method: str, body: object = None, query: str = "") -> Any:
    status, answer = await client.call(method, f"/v1/limits{query}", body)
    assert status == 200
    return answer["client"]


async def test_limits_are_shown_replaced_merged_and_removed(client: Client) -> None:
    assert await client.call("GET", "/v1/limits") == (200, {"client": []})
    assert await limits(client, "PUT", {"client": [SINKS]}) == [SINKS]
    more = {"client_id": "mine", "byte.rate.limit": 5.5}
    change = {"client": [{"client_id": "connector-consumer-*", "per": "connector", "record.rate.limit": 5}, more]}
    assert await limits(client, "PATCH", change) == [{**SINKS, "record.rate.limit": 5}, more]
    change = {"client": [{"client_id": "mine", "byte.rate.limit": None}]}
    assert (await limits(client, "PATCH", change))[1] == {"client_id": "mine"}
    assert await limits(client, "DELETE") == []
    assert client.sidecar.client_limits.tables == ()


async def test_limits_of_the_file_hold_again_without_those_of_http(client: Client) -> None:
    mine, other = {"client_id": "mine", "byte.rate.limit": 5}, {"client_id": "other", "byte.rate.limit": 7}
    client.sidecar.client_limits.load(read_client_limits([mine], "client"))
    assert await client.call("GET", "/v1/limits") == (200, {"client": [mine]})
    changed = {**mine, "byte.rate.limit": 9}
    assert await limits(client, "PATCH", {"client": [changed, other]}) == [changed, other]
    assert await limits(client, "DELETE", query="?source=http&client_id=mine") == [mine, other]
    assert await limits(client, "DELETE", query="?source=http") == [mine]
    assert await limits(client, "DELETE") == []
    assert await limits(client, "DELETE", query="?source=http") == [mine]


async def test_lease_of_a_limit_says_who_and_until_when(client: Client) -> None:
    mine = {"client_id": "mine", "byte.rate.limit": 5}
    client.sidecar.client_limits.load(read_client_limits([mine], "client"))
    lease = {"seconds": 60, "owner": "ann", "reason": "reindexing"}
    body = {"client": [{**mine, "byte.rate.limit": 9}], "lease": lease}
    assert await limits(client, "PATCH", body) == [{**mine, "byte.rate.limit": 9}]
    status, answer = await client.call("GET", "/v1/limits")
    told = {"client_id": "mine", "per": "task", "source": "http", "expires_in_seconds": 60, "owner": "ann"}
    assert (status, answer["sources"]) == (200, [{**told, "reason": "reindexing"}])
    status, answer = await client.call("PATCH", "/v1/limits", {"client": [mine], "lease": {"seconds": 0}})
    assert (status, answer["field"]) == (400, "lease.seconds")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"clients": []}, "body"),
        ({"client": {}}, "client"),
        ({"client": [{}]}, "client[0]"),
        ({"client": [5]}, "client[0]"),
        ({"client": [{"client_id": 5}]}, "client[0]"),
        ({"client": [{"client_id": "a", "record.rate.limit": 0}]}, "record.rate.limit"),
        ({"client": [{"client_id": "a", "rate": 0}]}, "rate"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_limits_that_are_wrong_change_nothing(client: Client, method: str, body: object, field: str) -> None:
    await client.call("PUT", "/v1/limits", {"client": [SINKS]})
    status, answer = await client.call(method, "/v1/limits", body)
    assert status == 400
    assert field in answer["field"]
    assert await limits(client, "GET") == [SINKS]


async def test_admin_question_about_shares_is_answered(client: Client) -> None:
    answer = {"broker_id": 1, "seconds": 0, "words": {}, "refused": {}}
    assert await client.call("POST", "/v1/shares", {}) == (200, answer)
    assert await client.call("POST", "/v1/shares") == (400, {"error": "body: is empty.", "field": "body"})


async def test_admin_capture_is_paused_and_resumed(client: Client) -> None:
    lease = {"lease": {"seconds": 600, "owner": "ann"}}
    assert await client.call("POST", "/v1/capture/pause") == (200, {"paused": True})
    assert await client.call("POST", "/v1/capture/pause", lease) == (200, {"paused": True})
    assert await client.call("POST", "/v1/capture/resume") == (200, {"paused": False})
    assert (await client.call("POST", "/v1/capture/pause", {"for": "10m"}))[0] == 400
    assert client.sidecar.asked == [{}, lease, None]
    assert (await client.call("GET", "/v1/capture/pause"))[0] == 405
