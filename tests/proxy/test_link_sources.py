"""A fetch of who is no replica passes as it came, and is counted."""

from tests.fakes.clock import MovedClock
from tests.fakes.relaying import relaying
from tests.protocol.wire import fetch, fetch_response, request, response
from weir.proxy.config.address import Network, numeric_address
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


async def test_a_client_that_turns_out_to_be_no_replica_is_let_go_of_and_passes() -> None:
    clock = MovedClock()
    async with relaying() as relay:
        sources = relay.listener.sources = ReplicaSources(None, clock)
        client, broker = await relay.connect(fetch(1, 5))
        there = numeric_address("10.0.0.5")
        assert there is not None
        sources.learn({5: frozenset((there,))})
        assert sources.admits("10.0.0.5", 5)
        await client.send(fetch(2, 5))
        await broker.expect(fetch(2, 5))
        assert [call[0] for call in relay.throttle.calls] == ["link", "plan", "close"]
        await broker.send(fetch_response(1) + response(2, b"not scanned"))
        await client.expect(fetch_response(1) + response(2, b"not scanned"))
        assert relay.throttle.told("settle") == []
        assert relay.stats.passthrough == {"not_a_replica": 1}
