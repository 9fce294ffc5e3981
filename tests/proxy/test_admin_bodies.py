# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests to the admin HTTP: none costs more than its size, and all together are bounded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.proxy.administered import Client
from tests.throttle_names import LEADER_REPLICAS
from weir.proxy.admin import bodies
from weir.proxy.admin.bodies import MAX_BODY_BYTES, MOST_BYTES, MOST_CONTAINERS, decoded
from weir.proxy.config.reader import ConfigError


class Counted(str):
    """A key that counts how often it is compared with another one."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        type(self).comparisons += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_doubled_key_is_found_in_a_pass(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is compared a few times, however many there are."""
    monkeypatch.setattr(Counted, "comparisons", 0)
    pairs: list[tuple[str, Any]] = [(Counted(f"k{number}"), 0) for number in range(size)]
    with pytest.raises(ConfigError, match=rf"k{size - 1}: is there twice"):
        bodies._without_doubles([*pairs, (Counted(f"k{size - 1}"), 1)])
    assert Counted.comparisons < 3 * size


def body_of(count: int) -> bytes:
    keys = [f'"{number:06}":1' for number in range(count)]
    return ("{" + ",".join([*keys, keys[-1]]) + "}").encode()


def seconds_for(body: bytes) -> float:
    def once() -> float:
        began = time.process_time()
        with pytest.raises(ConfigError):
            decoded(body)
        return time.process_time() - began

    return min(once() for _ in range(3))


@pytest.mark.long
def test_doubled_key_at_the_end_of_a_large_body_takes_time_by_its_size() -> None:
    """Before, 176 KB took 10 s."""
    small, large = body_of(47_000), body_of(188_000)
    assert len(small) > 500_000 and 2_000_000 < len(large) <= MAX_BODY_BYTES
    assert seconds_for(large) < 8 * seconds_for(small)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" + "[]," * MOST_CONTAINERS + "[]]",
        "[" + '{"a":1},' * MOST_CONTAINERS + "{}]",
        "1" * 2_000_000,
        '"' + "\\ud800" * 300_000 + '"',
    ],
)
def test_body_that_is_made_to_cost_is_refused_in_a_short_sentence(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError) as refused:
        decoded(text.encode())
    assert time.process_time() - began < 0.5
    assert len(refused.value.sentence()) < 200


LONG = "x" * 1_900_000


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/throttle", {LONG: 1}),
        ("/v1/throttle", {"topics": {LONG: {LEADER_REPLICAS: "*"}}}),
        ("/v1/throttle", {"topics": {"a": {LEADER_REPLICAS: LONG}}}),
        ("/v1/throttle", {"topics": {"a": {LONG: "*"}}}),
        ("/v1/throttle", {"quotas": [{"name": LONG}]}),
        ("/v1/throttle", {"mode": LONG}),
        ("/v1/throttle", {"mode": "observe", "lease": {"seconds": 1, "owner": LONG}}),
        ("/v1/throttle", {"quotas": [{"name": "a", "side": "leader", "rate": 1, "peers": [1] * 500_000}]}),
        ("/v1/limits", {"client": [{"client_id": LONG}]}),
        ("/v1/limits", {"client": [{"client_id": "a", "rate.limiters": [LONG]}]}),
        ("/v1/limits", {"client": [{"client_id": f"{number}"} for number in range(80_000)]}),
        ("/v1/limits", {"client": [{"client_id": "a", "exempt.topics": ["t"] * 400_000}]}),
        ("/v1/limits", {"client": [{"client_id": "a", LONG: 1}]}),
    ],
)
async def test_mistake_in_a_large_body_is_told_shortly_and_soon(client: Client, path: str, change: object) -> None:
    raw = json.dumps(change).encode()
    assert 900_000 < len(raw) <= MAX_BODY_BYTES
    began = time.process_time()
    status, body = await client.call("PATCH", path, raw=raw)
    assert status == 400 and len(body["error"]) < 1_000 and len(body["field"] or "") < 500
    assert time.process_time() - began < 1


@asynccontextmanager
async def sending(client: Client, count: int, size: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that announce a body, and send nothing of it."""
    host, port = client.base.removeprefix("http://").split(":")
    head = f"PATCH /v1/throttle HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    for _, writer in opened:
        writer.write(f"{head}Content-Length: {size}\r\n\r\n".encode())
    yield [reader for reader, _ in opened]
    for _, writer in opened:
        writer.close()


async def test_bodies_under_way_are_bounded_and_small_ones_pass(client: Client) -> None:
    async with sending(client, 9, MAX_BODY_BYTES) as readers, asyncio.timeout(5):
        refused = readers[MOST_BYTES // MAX_BODY_BYTES :]
        for reader in refused:
            assert await reader.readline() == b"HTTP/1.1 503 Service Unavailable\r\n"
        status, body = await client.call("PATCH", "/v1/throttle", raw=b" " * 1_000_000 + b"{}")
        assert status == 503 and "try again" in body["error"]
        assert (await client.call("PATCH", "/v1/throttle", {"mode": "observe"}))[0] == 200
    async with asyncio.timeout(5):
        while (await client.call("PATCH", "/v1/throttle", raw=b" " * 1_000_000 + b"{}"))[0] != 200:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_body_that_does_not_come_gives_its_room_back(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "RECEIVE_SECONDS", 0.01)
    async with sending(client, 1, MAX_BODY_BYTES) as (reader,), asyncio.timeout(5):
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
    assert (await client.call("PATCH", "/v1/throttle", raw=b" " * 1_000_000 + b"{}"))[0] == 200
