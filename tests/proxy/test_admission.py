# SPDX-License-Identifier: Apache-2.0
"""Who is let in: so many connections together and from one address, and none that never sends a request."""

import asyncio
import contextlib
import socket
import time
from ipaddress import ip_address

import pytest

from tests.fakes.links import FakeLink
from tests.fakes.relaying import Peer, Relaying, logged, relaying, round_trip
from tests.protocol.wire import request
from weir.proxy.config.tables import Limits
from weir.proxy.listeners import Bounds
from weir.proxy.relay.admission import Admission, FirstRequests, connections_with, descriptors_for

ON_BOTH_LOOPS = True


async def from_address(relay: Relaying, host: str) -> Peer:
    """A client at another address of this machine."""
    connection = socket.socket()
    connection.bind((host, 0))
    peer = relay.keep(Peer(connection))
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", relay.listener.address.port))
    return peer


async def refused(relay: Relaying, host: str) -> None:
    """A client that is sent away: while it connects, or right after."""
    with contextlib.suppress(ConnectionResetError):
        await (await from_address(relay, host)).expect_end()


async def test_address_with_too_many_connections_alone_is_refused() -> None:
    async with relaying() as relay:
        relay.relay.admission.most_from_address = 2
        first, broker = await relay.connect()
        await relay.connect()
        for _ in range(3):
            await refused(relay, "127.0.0.1")
        other = await from_address(relay, "127.0.0.2")
        await round_trip(other, await relay.accept(), 1)
        await round_trip(first, broker, 1)
        assert relay.stats.connections_refused == {"too_many_from_address": 3}
        assert (relay.stats.connections, relay.stats.connections_accepted) == (3, 3)
        (line,) = relay.log.of("connection_refused")
        assert (line["peer"], line["reason"], line["limit"]) == ("127.0.0.1", "too_many_from_address", 2)


async def test_refused_connection_is_reset_so_kernel_keeps_nothing() -> None:
    async with relaying() as relay:
        relay.relay.admission.most = 0
        with pytest.raises(ConnectionResetError):  # while it connects, or right after
            await (await from_address(relay, "127.0.0.1")).expect_end()


async def test_no_more_connections_than_allowed_until_one_is_closed() -> None:
    async with relaying() as relay:
        relay.relay.admission.most = 1
        client, _ = await relay.connect()
        await refused(relay, "127.0.0.2")
        assert relay.stats.connections_refused == {"too_many": 1}
        client.reset()
        await relay.until(lambda: relay.stats.connections == 0)
        again, broker = await relay.connect()
        await round_trip(again, broker, 1)


async def test_an_upstream_that_is_down_leaves_nothing_counted() -> None:
    async with relaying() as relay:
        relay.broker.close()
        client = await relay.client()
        await client.expect_end()
        await relay.until(lambda: relay.stats.connections == 0)
        assert relay.relay.admission.total == 0
        assert relay.relay.admission.refusal("127.0.0.1") is None


@pytest.mark.parametrize("sent", [b"", request(18, 0, 1)[:11]])
async def test_connection_without_a_request_is_closed_after_its_time(sent: bytes) -> None:
    async with relaying() as relay:
        silent, _ = await relay.connect()
        await silent.send(sent)
        await relay.until(lambda: [link.from_client.moved for link in relay.listener.links] == [len(sent)])
        relay.later = 599.0
        relay.relay.first_requests.expire()
        assert relay.stats.connections == 1
        relay.later = 601.0
        relay.relay.first_requests.expire()
        await silent.expect_end()
        assert relay.stats.connections_dismissed == 1
        assert len(relay.log.of("no_request_came")) == 1


async def test_a_connection_that_sent_a_request_may_be_idle_for_ever() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect()
        await round_trip(client, broker, 1)
        relay.later = 100_000.0
        relay.relay.first_requests.expire()
        await round_trip(client, broker, 2)
        assert relay.stats.connections_dismissed == 0


async def test_a_timer_closes_connections_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.admission._SWEEP_SECONDS", 0.0)
    async with relaying() as relay:
        relay.relay.first_requests.seconds = 0.01
        client, _ = await relay.connect()
        await client.expect_end()
        client, _ = await relay.connect()
        await client.expect_end()
        assert relay.stats.connections_dismissed == 2


async def test_less_time_counts_at_once_for_connections_that_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.admission._SWEEP_SECONDS", 0.0)
    async with relaying() as relay:
        client, _ = await relay.connect()
        await relay.until(lambda: relay.listener.links)
        relay.relay.first_requests.seconds = 0.01
        await client.expect_end()
        assert relay.stats.connections_dismissed == 1


async def test_closed_links_are_not_kept_until_their_time_is_over() -> None:
    async with relaying() as relay:
        client, _ = await relay.connect()
        await relay.until(lambda: relay.listener.links)
        client.reset()
        await relay.until(lambda: not relay.listener.links)
        assert not relay.relay.first_requests._since


def test_address_is_forgotten_with_its_last_connection() -> None:
    admission = Admission()
    for host in ("a", "b", "a"):
        admission.enter(host)
    for host in ("a", "b", "a"):
        admission.leave(host)
    assert (admission.total, dict(admission._from)) == (0, {})
    assert admission.refusal("c") is None
    assert not admission._from, "asking counts nobody"


def test_clients_of_many_addresses_leave_room_for_brokers() -> None:
    admission = Admission(16, 16)
    admission.learn([ip_address("10.0.0.1"), ip_address("fd00::2")])
    clients = [f"10.9.0.{number}" for number in range(20)]
    let_in = []
    for client in clients:
        if admission.refusal(client) is None:
            admission.enter(client)
            let_in.append(client)
    assert len(let_in) == admission.most_of_others == 14
    assert admission.refusal("10.9.9.9") == "too_many"
    for broker in ("10.0.0.1", "fd00::2"):
        assert admission.refusal(broker) is None
        admission.enter(broker)
    assert admission.refusal("10.0.0.1") == "too_many", "all together are bounded too"
    admission.leave(let_in[0])
    assert admission.refusal("10.9.9.9") is None


def test_brokers_known_late_have_room_when_crowding_clients_go() -> None:
    admission = Admission(16, 16)
    for client in ("10.9.0.1", "10.0.0.1"):
        for _ in range(8):
            admission.enter(client)
    assert admission.most_of_others == 16, "as long as nobody has told who is a broker"
    admission.learn([ip_address("10.0.0.1")])
    assert admission.refusal("10.9.0.1") == "too_many"
    admission.leave("10.0.0.1")
    assert admission.refusal("10.9.0.1") is None, "there are 8 of 14"
    for _ in range(7):
        admission.leave("10.0.0.1")
    for _ in range(8):
        admission.leave("10.9.0.1")
    assert (admission.total, admission._others, dict(admission._from)) == (0, 0, {})


def test_expired_links_are_found_without_a_look_at_others() -> None:
    now = 0.0
    requests = FirstRequests(lambda: now, 10.0)
    links = [FakeLink() for _ in range(3)]
    for at, link in enumerate(links):
        requests._since[link] = float(at)
    now = 11.0
    requests.expire()
    assert [link.why for link in links] == ["no_request_came", "no_request_came", ""]


def test_process_with_too_few_files_says_so_and_lets_in_fewer() -> None:
    """It says how many open files are allowed, and how many are needed."""
    with logged() as (log, lines):
        bounds = Bounds(log, time.monotonic, 1024)
        bounds.apply(Limits(max_connections=1000))
        (line,) = lines.of("too_few_open_files")
        assert (line["allowed"], line["needed"]) == (1024, descriptors_for(1000))
        assert bounds.admission.most == connections_with(1024) < 1000
        bounds.apply(Limits(max_connections=bounds.admission.most))
        assert len(lines.lines) == 1, "that many fit"
        bounds.apply(Limits(max_connections=100, max_connections_per_address=50))
        assert (bounds.admission.most, bounds.admission.most_from_address) == (100, 50)
