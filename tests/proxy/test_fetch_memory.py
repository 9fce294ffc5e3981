"""All fetches that are being received or held share one bound; the connection that keeps most has to go."""

import pytest

from proxy.fetch_memory import FetchMemory
from tests.protocol.wire import fetch, fetch_response, request
from tests.proxy.relaying import relaying

ON_BOTH_LOOPS = True


def large_fetch(partitions: int) -> bytes:
    return fetch(1, 5, topics=((b"t", tuple((number, 0, 1) for number in range(partitions))),))


class Link:
    """Remembers that it was evicted."""

    evicted = False

    def evict(self) -> None:
        self.evicted = True


def test_memory_up_to_the_limit_evicts_no_one() -> None:
    memory = FetchMemory(100)
    links = [Link() for _ in range(3)]
    for link, size in zip(links, (60, 30, 10), strict=True):
        memory.keep(link, size)
    memory.keep(links[0], 50)
    memory.keep(links[1], 40)
    assert memory.total == 100
    assert not any(link.evicted for link in links)


@pytest.mark.parametrize(
    ("last", "evicted", "total"),
    [(11, [True, False, False], 41), (61, [False, False, True], 90), (500, [False, False, True], 90)],
)
def test_memory_above_the_limit_evicts_who_keeps_most(last: int, evicted: list[bool], total: int) -> None:
    memory = FetchMemory(100)
    links = [Link() for _ in range(3)]
    for link, size in zip(links, (60, 30, last), strict=True):
        memory.keep(link, size)
    assert [link.evicted for link in links] == evicted
    assert memory.total == total


def test_memory_with_a_lower_limit_evicts_until_the_rest_fits() -> None:
    memory = FetchMemory(100)
    links = [Link() for _ in range(4)]
    for link, size in zip(links, (40, 30, 20, 5), strict=True):
        memory.keep(link, size)
    memory.limit = 30
    memory.keep(links[3], 6)
    assert [link.evicted for link in links] == [True, True, False, False]


async def test_fetches_that_never_end_cost_their_clients_and_not_the_others() -> None:
    async with relaying() as relay:
        relay.relay.fetch_memory.limit = 100_000
        clients = []
        for size in (30_000, 40_000, 45_000):
            client, broker = await relay.connect()
            await client.send(large_fetch(10_000)[:size])
            clients.append((client, broker))
        most, its_broker = clients.pop()
        await most.expect_end()
        await its_broker.expect_end()
        assert relay.relay.fetch_memory.total == 70_000
        assert relay.stats.protocol_errors == {"fetch_memory": 1}
        (line,) = relay.log.of("fetch_memory_full")
        assert (line["kept_bytes"], line["peer"]) == (45_000, "127.0.0.1")
        await relay.connect(fetch(1, 5))
        (client, broker), (other, _) = clients
        await client.send(large_fetch(10_000)[30_000:30_001])
        other.reset()
        await relay.until(lambda: relay.relay.fetch_memory.total == 30_001)
        assert broker.has_nothing()


async def test_a_fetch_larger_than_what_one_read_takes_is_kept_until_it_is_whole() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(large_fetch(10_000))
        assert relay.relay.fetch_memory.total == 0
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))


@pytest.mark.parametrize("behind", [b"", request(3, 0, 2)])
async def test_a_held_fetch_and_what_came_behind_it_are_kept_until_it_goes(behind: bytes) -> None:
    async with relaying() as relay:
        asked = large_fetch(500)
        _, broker = await relay.hold(asked + behind)
        assert relay.relay.fetch_memory.total == len(asked[4:] + behind)
        relay.relay.replan_held()
        await broker.expect(asked + behind)
        assert relay.relay.fetch_memory.total == 0


async def test_a_held_fetch_that_keeps_most_is_given_up_for_others() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(large_fetch(500))
        relay.relay.fetch_memory.limit = 9000
        another, _ = await relay.connect()
        await another.send(large_fetch(500)[:4000])
        await client.expect_end()
        await broker.expect_end()
        assert relay.stats.held == 0
        assert relay.throttle.told("close") == [("close",)]
        assert relay.relay.fetch_memory.total == 4000


async def test_a_drain_gives_back_what_a_held_fetch_kept() -> None:
    async with relaying() as relay:
        client, _ = await relay.hold(request(3, 0, 1) + large_fetch(500))  # the first is not answered: it goes on
        for link in relay.listener.links:
            link.drain()
        assert relay.relay.fetch_memory.total == 0
        assert client.has_nothing()
