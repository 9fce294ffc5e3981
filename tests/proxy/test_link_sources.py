# SPDX-License-Identifier: Apache-2.0
"""A fetch of who is no replica passes as it came, and is counted."""

from tests.fakes.clock import MovedClock
from tests.fakes.relaying import Peer, relaying
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.proxy.config.address import IPAddress, Network, numeric_address
from weir.proxy.relay.replica_sources import ReplicaSources

ON_BOTH_LOOPS = True


async def test_a_fetch_from_another_network_passes_and_is_counted() -> None:
    async with relaying() as relay:
        relay.listener.sources = ReplicaSources([Network.parse("10.0.0.0/8")])
        client, broker = await relay.connect(fetch(1, 5) + request(3, 0, 2) + fetch(3, 5) + fetch(4, -1))
        await broker.send(response(1, b"not even scanned") + response(2))
        await client.expect(response(1, b"not even scanned") + response(2))
        assert relay.throttle.calls == []
        assert relay.stats.passthrough == {"not_a_replica": 2}
        (line,) = relay.log.of("not_a_replica")
        assert (line["peer"], line["replica_id"]) == ("127.0.0.1", 5)


async def test_a_fetch_from_a_network_of_replicas_is_planned() -> None:
    async with relaying() as relay:
        relay.listener.sources = ReplicaSources([Network.parse("10.0.0.0/8"), Network.parse("127.0.0.1")])
        await relay.connect(fetch(1, 5))
        assert len(relay.throttle.told("plan")) == 1
        assert relay.stats.passthrough == {}


async def test_stranger_found_is_planned_as_one_until_it_is_known() -> None:
    """Once it is known it is planned as a replica again."""
    clock = MovedClock()
    async with relaying() as relay:
        sources = relay.listener.sources = ReplicaSources(None, clock)
        client, broker = await relay.connect(fetch(1, 5))
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))
        sources.learn({5: at("10.0.0.5")})
        assert sources.standing("10.0.0.5", 5) == "replica"
        await round_trip(client, broker, 2)
        assert (relay.stats.stranger_fetches, relay.stats.passthrough) == (1, {})
        (line,) = relay.log.of("unknown_replica")
        assert (line["peer"], line["replica_id"]) == ("127.0.0.1", 5)
        sources.learn({5: at("127.0.0.1")})
        await round_trip(client, broker, 3)
        linked = [call[1] for call in relay.throttle.calls if call[0] == "link"]
        assert linked == [5, "a stranger", 5]
        assert len(relay.throttle.told("plan")) == len(relay.throttle.told("settle")) == 3


async def test_who_is_judged_anew_is_another_after_the_answer_due() -> None:
    """Followers have one fetch under way at a time."""
    async with relaying() as relay:
        sources = relay.listener.sources = ReplicaSources(None, MovedClock())
        client, broker = await relay.connect(fetch(1, 5))
        sources.learn({5: at("10.0.0.5")})
        assert sources.standing("10.0.0.5", 5) == "replica"
        await client.send(fetch(2, 5))
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))
        await broker.expect(fetch(2, 5))
        assert relay.throttle.calls[2:5] == [("settle", [b"orders"]), ("close",), ("link", "a stranger")]


async def test_fetch_with_another_id_is_planned_as_another_follower() -> None:
    """Else a quota of some followers would not cover who began as somebody else."""
    async with relaying() as relay:
        client, broker = await relay.connect(fetch(1, 99))
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))
        await round_trip(client, broker, 2)
        await round_trip(client, broker, 3)
        assert [call[1] for call in relay.throttle.calls if call[0] == "link"] == [99, 5]


async def test_who_takes_another_id_is_another_after_the_answer_due() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(fetch(1, 99))
        await client.send(fetch(2, 5))
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))
        await broker.expect(fetch(2, 5))
        assert relay.throttle.calls[2:5] == [("settle", [b"orders"]), ("close",), ("link", 5)]


def at(address: str) -> frozenset[IPAddress]:
    found = numeric_address(address)
    assert found is not None
    return frozenset((found,))


async def round_trip(client: Peer, broker: Peer, number: int) -> None:
    await client.send(fetch(number, 5))
    await broker.expect(fetch(number, 5))
    await broker.send(fetch_response(number))
    await client.expect(fetch_response(number))
