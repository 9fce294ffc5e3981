# SPDX-License-Identifier: Apache-2.0
"""The other sidecars as one of them sees them: over real sockets, well-behaved or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.servers import serving
from tests.proxy.page.made_up import MOVING, side, status, waiting
from weir.proxy.admin import fleet as fleet_module
from weir.proxy.admin.fleet import FRESH_SECONDS, Fleet
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Admin, Cluster, Config


class Other:
    """Another sidecar: answers each request with `answer`, or not at all."""

    def __init__(self, answer: bytes | None = None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.released = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        if self.answer is None:
            await self.released.wait()
        else:
            writer.write(self.answer)
        writer.close()


def http(body: bytes, code: int = 200, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d Said\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s" % (code, more, len(body), body)


def as_json(value: object) -> bytes:
    return http(json.dumps(value).encode())


@asynccontextmanager
async def running(*others: Other) -> AsyncIterator[list[int]]:
    if not others:
        yield []
        return
    async with serving(others[0].serve) as (_, port), running(*others[1:]) as ports:
        yield [port, *ports]
        others[0].released.set()


def named(*ports: int, clock: MovedClock | None = None) -> Fleet:
    """The fleet of a sidecar that was told the others' addresses."""
    admin = Admin(fleet=tuple(Address("127.0.0.1", port) for port in ports))
    return Fleet(Config(broker_id=1, admin=admin), lambda: {}, _never, clock or MovedClock())


async def _never() -> Mapping[str, Any]:
    pytest.fail("the own status is not asked for")


async def test_fleet_shows_sidecars_by_broker_and_drops_the_unknown() -> None:
    """Keys that it does not know are not shown."""
    second = {**status(leader=MOVING, follower=side()), "broker_id": 2, "more": {"a": "b"}}
    async with running(Other(as_json(second)), Other(as_json(status()))) as ports:
        rows = await named(*ports).rows()
    assert [(row["broker_id"], row["admin"]) for row in rows] == [
        (1, f"127.0.0.1:{ports[1]}"),
        (2, f"127.0.0.1:{ports[0]}"),
    ]
    leader = rows[1]["sides"]["leader"]
    assert (leader["quota_bytes_per_second"], leader["lag"]["partitions_behind"]) == (5_000_000, 12)
    assert leader["held_up_by"] == MOVING["held_up_by"]
    assert "more" not in rows[1]
    assert "links" not in leader


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http(b"<html>"), "what answers there is no sidecar of this version"),
        (http(b"{}"), "what answers there is no sidecar of this version"),
        (http(b"\xff"), "what answers there is no sidecar of this version"),
        (as_json({**status(), "version": 7}), "what answers there is no sidecar of this version"),
        (http(b"{}", 500), "it answers with 500"),
        (http(b"", 302, b"Location: http://127.0.0.1:9/\r\n"), "it answers with 302"),
        (http(b" " * 200), "its answer does not end"),
        (b"SSH-2.0-\r\n", "what answers there is no sidecar"),
        (b"", "what answers there is no sidecar"),
    ],
)
async def test_fleet_one_that_is_no_sidecar_costs_a_line(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str
) -> None:
    good = as_json(status())
    monkeypatch.setattr(fleet_module, "_MOST_BYTES", max(len(good), 100) if b" " * 200 not in answer else 150)
    async with running(Other(answer)) as ports:
        (row,) = await named(*ports).rows()
    assert said in row["error"]
    assert (row["admin"], row["broker_id"]) == (f"127.0.0.1:{ports[0]}", None)


async def test_fleet_one_that_is_down_or_silent_costs_a_line(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setattr(fleet_module, "ANSWER_SECONDS", 0.2)
    async with running(Other(), Other(as_json(status()))) as (silent, good):
        rows = await named(silent, unused_tcp_port, good).rows()
    errors = {row["admin"].rpartition(":")[2]: row.get("error") for row in rows}
    assert errors == {
        str(silent): "no answer within 0.2 s",
        str(unused_tcp_port): "Connection refused",
        str(good): None,
    }


async def test_fleet_is_asked_only_if_looked_at_and_once_for_many() -> None:
    clock, other = MovedClock(), Other(as_json(status()))
    async with running(other) as ports:
        fleet = named(*ports, clock=clock)
        assert other.requests == []
        answers = await asyncio.gather(*[fleet.rows() for _ in range(5)])
        assert all(rows == answers[0] for rows in answers)
        assert len(other.requests) == 1
        clock.move(FRESH_SECONDS)
        await fleet.rows()
        assert len(other.requests) == 2


async def test_fleet_asks_at_the_clusters_brokers_but_not_itself() -> None:
    """The own sidecar is not asked over the network."""

    async def own() -> Mapping[str, Any]:
        return status()

    other = Other(as_json({**status(), "broker_id": 2}))
    async with running(other) as (port,):
        config = Config(
            broker_id=1,
            admin=Admin(listen=Address("127.0.0.1", port)),
            cluster=Cluster(bootstrap_servers=(Address("127.0.0.1", 1),)),
        )
        hosts = {1: "no-such-host.invalid", 2: "127.0.0.1"}
        fleet = Fleet(config, lambda: hosts, own, MovedClock())
        rows = await fleet.rows()
    assert fleet.is_known
    assert [(row["broker_id"], row.get("error")) for row in rows] == [(1, None), (2, None)]
    assert other.requests[0].startswith(b"GET /v1/status HTTP/1.1\r\n")


async def test_fleet_sidecar_is_not_taken_for_another_brokers() -> None:
    """Brokers that share a host: all are expected at one address, where only one of them can listen."""
    async with running(Other(as_json({**status(), "broker_id": 2}))) as (port,):
        cluster = Cluster(bootstrap_servers=(Address("127.0.0.1", 1),))
        config = Config(broker_id=1, admin=Admin(listen=Address("127.0.0.1", port)), cluster=cluster)
        fleet = Fleet(config, lambda: {2: "127.0.0.1", 3: "127.0.0.1"}, _never, MovedClock())
        rows = await fleet.rows()
    assert [(row["broker_id"], row.get("error")) for row in rows] == [
        (2, None),
        (3, "the sidecar there is that of broker 2"),
    ]


async def test_fleet_one_that_waits_is_that_of_the_broker_at_its_host() -> None:
    async with running(Other(as_json(waiting()))) as (port,):
        cluster = Cluster(bootstrap_servers=(Address("127.0.0.1", 1),))
        config = Config(broker_id=1, admin=Admin(listen=Address("127.0.0.1", port)), cluster=cluster)
        (row,) = await Fleet(config, lambda: {2: "127.0.0.1"}, _never, MovedClock()).rows()
        (unknown,) = await named(port).rows()
    assert (row["broker_id"], row["state"], row["not_ready"]) == (2, "waiting", ["tokens: no such file"])
    assert (unknown["broker_id"], unknown["state"]) == (None, "waiting")


async def test_fleet_name_stands_for_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: object, **more: object) -> list[Any]:
        assert host == "sidecars.example"
        return [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("127.0.0.2", 0)), (2, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    admin = Admin(fleet=(Address("sidecars.example", 1),))
    fleet = Fleet(Config(broker_id=1, admin=admin), lambda: {}, _never, MovedClock())
    assert [row["admin"] for row in await fleet.rows()] == ["127.0.0.1:1", "127.0.0.2:1"]


async def test_fleet_name_that_means_nothing_is_shown_with_its_error() -> None:
    admin = Admin(fleet=(Address("no-such-host.invalid", 1),))
    (row,) = await Fleet(Config(broker_id=1, admin=admin), lambda: {}, _never, MovedClock()).rows()
    assert row["admin"] == "no-such-host.invalid:1"
    assert row["error"]


def test_fleet_is_not_known_without_a_cluster_or_a_list() -> None:
    assert not Fleet(Config(broker_id=1), lambda: {}, _never, MovedClock()).is_known
