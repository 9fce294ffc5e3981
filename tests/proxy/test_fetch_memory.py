# SPDX-License-Identifier: Apache-2.0
"""All fetches that are being received or held share one bound, and half a fetch is not kept for ever."""

import time
from functools import partial

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.links import FakeLink
from tests.fakes.relaying import relaying
from tests.protocol.wire import fetch, fetch_response, produce, request
from weir.protocol.response_scanner import Expected
from weir.protocol.take_out import Passing
from weir.proxy.relay.fetch_memory import FetchMemory
from weir.quota.fetch.decisions import Forward, Hold

ON_BOTH_LOOPS = True

ASKED = fetch(1, 5, topics=((b"t", ((0, 7, 10),)),))
ANSWER = fetch_response(1, topics=((b"t", ((0, 9, bytes(400_000)),)),))

granted = partial(Forward, expected=Expected(admit=lambda *_: Passing.ALL, holds_all=True), is_granted=True)
"""What a quota has granted: the whole answer to it is held, where there is room."""


def large_fetch(partitions: int) -> bytes:
    return fetch(1, 5, topics=((b"t", tuple((number, 0, 1) for number in range(partitions))),))


def links_of(*hosts: str) -> list[FakeLink]:
    return [FakeLink(host) for host in hosts]


def gone(links: list[FakeLink]) -> list[bool]:
    return [bool(link.why) for link in links]


def test_memory_up_to_the_limit_evicts_no_one() -> None:
    memory = FetchMemory(100)
    links = links_of("a", "b", "c")
    for link, size in zip(links, (50, 30, 10), strict=True):
        memory.keep(link, half=size, whole=0)
    memory.keep(links[0], half=0, whole=45)
    memory.keep(links[1], half=20, whole=25)
    assert memory.total == 100
    assert gone(links) == [False] * 3


def test_memory_above_the_limit_evicts_the_oldest_half() -> None:
    """It is the oldest half of a fetch of the address that keeps most."""
    memory = FetchMemory(100)
    links = links_of("a", "b", "b", "b", "c")
    for link, half, whole in zip(links, (10, 0, 9, 12, 5), (0, 20, 0, 0, 30), strict=True):
        memory.keep(link, half=half, whole=whole)
    memory.keep(links[0], half=25, whole=0)
    assert gone(links) == [False, False, True, False, False]
    assert memory.total == 92
    memory.keep(links[2], half=0, whole=0)  # it is gone: nothing changes
    memory.keep(links[0], half=40, whole=0)
    assert gone(links) == [True, False, True, False, False]  # by now its own address keeps most


def test_address_may_keep_half_of_memory_or_more_of_one_fetch() -> None:
    memory = FetchMemory(100)
    links = links_of("a", "a", "a", "b")
    memory.keep(links[0], half=90, whole=0)
    assert memory.total == 90
    memory.keep(links[0], half=20, whole=0)
    memory.keep(links[1], half=20, whole=0)
    memory.keep(links[2], half=20, whole=0)
    assert gone(links) == [True, False, False, False]
    assert memory.total == 40


def test_whole_fetch_stays_while_its_address_has_half_ones() -> None:
    memory = FetchMemory(100)
    links = links_of("a", "a", "a", "a")
    memory.keep(links[0], half=0, whole=40)
    for link in links[1:]:
        memory.keep(link, half=9, whole=0)
    assert gone(links) == [False, True, True, False]
    memory.keep(links[3], half=0, whole=11)
    assert gone(links) == [True, True, True, False]  # the largest


def test_a_half_that_is_of_another_fetch_is_as_young_as_that() -> None:
    memory = FetchMemory(100)
    links = links_of("a", "a", "a")
    for link in links:
        memory.keep(link, half=10, whole=0)
    memory.keep(links[0], half=10, whole=0, fetch=1)
    memory.keep(links[2], half=40, whole=0)
    assert gone(links) == [False, True, False]


def test_memory_with_a_lower_limit_evicts_until_the_rest_fits() -> None:
    memory = FetchMemory(100)
    links = links_of("a", "b", "c", "d")
    for link, size in zip(links, (40, 30, 20, 5), strict=True):
        memory.keep(link, half=0, whole=size)
    memory.limit = 30
    memory.keep(links[3], half=0, whole=6)
    assert gone(links) == [True, True, False, False]


@pytest.mark.parametrize("size", [20, 21])
def test_a_half_that_stands_still_is_evicted_after_ten_seconds(size: int) -> None:
    clock = MovedClock()
    memory = FetchMemory(1000, clock)
    (link,) = links_of("a")
    memory.keep(link, half=20, whole=0)
    clock.move(9.9)
    memory.expire()
    memory.keep(link, half=size, whole=0)
    clock.move(9.9)
    memory.expire()
    assert link.why == ("fetch_stalled" if size == 20 else "")
    clock.move(0.2)
    memory.expire()
    assert link.why == "fetch_stalled"
    assert memory.total == 0


def test_half_that_grows_slowly_is_evicted_after_30_seconds() -> None:
    clock = MovedClock()
    memory = FetchMemory(1000, clock)
    links = links_of("a", "a")
    for second in range(30):
        for link in links:
            memory.keep(link, half=second + 1, whole=0, fetch=second // 15 if link is links[1] else 0)
        memory.expire()
        assert gone(links) == [False, False]
        clock.move(1.0)
    memory.expire()
    assert gone(links) == [True, False]


def test_a_half_whose_link_reads_nothing_is_not_to_blame() -> None:
    clock = MovedClock()
    memory = FetchMemory(1000, clock)
    links = links_of("a", "a", "a")
    links[0].is_reading = False
    memory.keep(links[0], half=10, whole=0)
    memory.keep(links[1], half=0, whole=10)  # held
    memory.keep(links[2], half=10, whole=0)
    memory.drop(links[2])
    clock.move(100.0)
    memory.expire()
    assert gone(links) == [False] * 3


def test_answers_leave_half_of_memory_to_fetches_and_half_of_theirs_to_other_addresses() -> None:
    memory = FetchMemory(100)
    links = links_of("a", "b", "c")
    assert (memory.has_room("a", 25), memory.has_room("a", 26)) == (True, False)
    memory.keep(links[0], half=0, whole=20)
    assert (memory.has_room("a", 5), memory.has_room("a", 6)) == (True, False)
    memory.keep(links[1], half=15, whole=0)
    assert (memory.has_room("c", 15), memory.has_room("c", 16)) == (True, False)
    memory.keep(links[2], half=50, whole=0)
    assert not memory.has_room("d", 1)
    assert gone(links) == [False] * 3


async def test_an_answer_beyond_the_bound_passes_as_it_comes() -> None:
    """Its end comes late, as that of the one before, which is held until then."""
    async with relaying() as relay:
        relay.relay.fetch_memory.limit = 6 * len(ANSWER)  # a quarter of it has room for one, of this address
        relay.throttle.decisions += [granted, granted, granted]
        held, its_broker = await relay.connect(ASKED)
        await its_broker.send(ANSWER[:-9])
        await relay.until(lambda: relay.relay.fetch_memory.total == len(ANSWER) - 4)
        passes, another = await relay.connect(ASKED)
        await another.send(ANSWER[:-9])
        await passes.expect(ANSWER[:-9])
        assert held.has_nothing()
        await its_broker.send(ANSWER[-9:])
        await held.expect(ANSWER)
        await relay.until(lambda: relay.relay.fetch_memory.total == 0)
        await another.send(ANSWER[-9:])
        await passes.expect(ANSWER[-9:])
        third, broker = await relay.connect(ASKED)  # there is room again
        await broker.send(ANSWER[:-9])
        await relay.until(lambda: relay.relay.fetch_memory.total == len(ANSWER) - 4)
        assert third.has_nothing()


async def test_an_answer_that_was_held_counts_until_its_follower_has_taken_it() -> None:
    async with relaying() as relay:
        relay.throttle.decisions += [granted]
        client, broker = await relay.connect(ASKED)
        await broker.send(ANSWER)
        await relay.until(lambda: relay.throttle.told("settle"))
        assert relay.relay.fetch_memory.total == len(ANSWER) - 4
        await client.expect(ANSWER)
        await relay.until(lambda: relay.relay.fetch_memory.total == 0)


async def test_a_link_that_ends_with_a_held_answer_keeps_nothing() -> None:
    async with relaying() as relay:
        relay.throttle.decisions += [granted]
        client, broker = await relay.connect(ASKED)
        await broker.send(ANSWER[:-9])
        await relay.until(lambda: relay.relay.fetch_memory.total)
        client.reset()
        await relay.until(lambda: relay.relay.fetch_memory.total == 0)


async def test_half_a_fetch_is_given_up_when_its_rest_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.relay.fetch_memory._SWEEP_SECONDS", 0.01)
    clock = MovedClock(time.monotonic())
    async with relaying() as relay:
        relay.relay.fetch_memory = FetchMemory(clock=clock)
        client, broker = await relay.connect()
        await client.send(large_fetch(500)[:3000])
        another, _ = await relay.hold(large_fetch(500))
        idle, its_broker = await relay.connect(fetch(1, 5))
        await relay.until(lambda: relay.relay.fetch_memory.total > 3000)
        clock.move(10.0)
        await client.expect_end()
        await broker.expect_end()
        assert relay.stats.protocol_errors == {"fetch_stalled": 1}
        (line,) = relay.log.of("fetch_stalled")
        assert line["kept_bytes"] == 3000
        assert another.has_nothing()
        await its_broker.send(fetch_response(1))
        await idle.expect(fetch_response(1))


async def test_link_evicted_for_what_waits_its_turn_keeps_nothing() -> None:
    async with relaying() as relay:
        relay.relay.fetch_memory.limit = 1000
        client, _ = await relay.connect()
        client.connection.send(b"".join(produce(number, 0) for number in range(3000)))
        await client.expect_end()
        client, _ = await relay.connect()
        client.connection.send(fetch(1, 5) + large_fetch(500)[:4000])
        await client.expect_end()
        await relay.until(lambda: not relay.stats.connections)
        assert relay.relay.fetch_memory.total == 0


async def test_the_head_of_a_request_counts_when_it_is_long() -> None:
    async with relaying() as relay:
        client, _ = await relay.connect()
        await client.send(fetch(1, 5, client_id=b"c" * 30_000)[:20_000])
        await relay.until(lambda: relay.relay.fetch_memory.total == 20_000)


async def test_silent_connections_with_half_a_fetch_evict_no_real_one() -> None:
    real = large_fetch(20_000)
    async with relaying() as relay:
        relay.relay.fetch_memory.limit = 4_000_000
        for _ in range(30):
            client, _ = await relay.connect()
            await client.send(real[:150_000])
        await relay.until(lambda: relay.stats.protocol_errors["fetch_memory"] >= 30 - 2_000_000 // 150_000)
        for _ in range(5):
            client, broker = await relay.connect(real)
            await broker.send(fetch_response(1))
            await client.expect(fetch_response(1))


async def test_endless_fetches_cost_their_clients_and_not_others() -> None:
    async with relaying() as relay:
        relay.relay.fetch_memory.limit = 200_000
        clients, kept = [], 0
        for size in (45_000, 30_000, 40_000):
            client, broker = await relay.connect()
            await client.send(large_fetch(10_000)[:size])
            clients.append((client, broker))
            if size != 40_000:
                await relay.until(lambda kept=kept + size: relay.relay.fetch_memory.total == kept)  # type: ignore[misc]
                kept += size
        oldest, its_broker = clients.pop(0)
        await oldest.expect_end()
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


async def test_fetch_larger_than_one_read_is_kept_until_it_is_whole() -> None:
    async with relaying() as relay:
        client, broker = await relay.connect(large_fetch(10_000))
        assert relay.relay.fetch_memory.total == 0
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))


async def test_link_that_is_closed_keeps_nothing() -> None:
    """Whoever has closed it amid other work may still have it look at its core."""
    async with relaying() as relay:
        client, _ = await relay.connect()
        await client.send(large_fetch(500)[:-1])
        await relay.until(lambda: relay.relay.fetch_memory.total)
        (link,) = relay.listener.links
        link.close()
        link.carry_out()
        assert relay.relay.fetch_memory.total == 0


@pytest.mark.parametrize("behind", [b"", request(3, 0, 2)])
async def test_held_fetch_and_what_is_behind_are_kept_until_it_goes(behind: bytes) -> None:
    async with relaying() as relay:
        asked = large_fetch(500)
        _, broker = await relay.hold(asked + behind)
        assert relay.relay.fetch_memory.total == len(asked[4:] + behind)
        relay.relay.held.wake_now()
        await broker.expect(asked)
        assert relay.relay.fetch_memory.total == len(behind)
        await broker.send(fetch_response(1))
        await broker.expect(behind)
        await relay.until(lambda: relay.relay.fetch_memory.total == 0)


async def test_a_held_fetch_stays_and_the_half_of_another_goes() -> None:
    async with relaying() as relay:
        held, _ = await relay.hold(large_fetch(500))
        relay.relay.fetch_memory.limit = 9000
        another, its_broker = await relay.connect()
        relay.throttle.decisions.append(Hold(float("inf")))
        await another.send(large_fetch(500)[:4000])
        await another.expect_end()
        await its_broker.expect_end()
        assert (len(relay.relay.held), held.has_nothing()) == (1, True)


async def test_larger_of_two_held_fetches_goes_when_both_do_not_fit() -> None:
    async with relaying() as relay:
        client, broker = await relay.hold(large_fetch(500))
        relay.relay.fetch_memory.limit = 9000
        relay.throttle.decisions.extend([Hold(float("inf"))] * 2)
        another, _ = await relay.connect()
        await another.send(large_fetch(250))
        await client.expect_end()
        await broker.expect_end()
        assert (len(relay.relay.held), another.has_nothing()) == (1, True)
        assert relay.throttle.told("close") == [("close",)]


async def test_a_drain_gives_back_what_a_held_fetch_kept() -> None:
    async with relaying() as relay:
        client, _ = await relay.hold(request(3, 0, 1) + large_fetch(500))  # the first is not answered: it goes on
        for link in relay.listener.links:
            link.drain()
        assert relay.relay.fetch_memory.total == 0
        assert client.has_nothing()


async def test_a_fetch_behind_another_has_its_own_time() -> None:
    clock = MovedClock()
    async with relaying() as relay:
        relay.relay.fetch_memory = memory = FetchMemory(clock=clock)
        client, broker = await relay.connect()
        await client.send(fetch(1, 5)[:30])
        await relay.until(lambda: memory.total == 30)
        clock.move(8.0)
        await client.send(fetch(1, 5)[30:] + fetch(2, 5)[:30])
        await broker.expect(fetch(1, 5))
        clock.move(8.0)
        memory.expire()
        await broker.send(fetch_response(1))
        await client.expect(fetch_response(1))
        clock.move(8.0)
        memory.expire()
        await client.send(fetch(2, 5)[30:])
        await broker.expect(fetch(2, 5))


async def test_a_large_fetch_takes_turns_while_it_is_received() -> None:
    async with relaying() as relay:
        client, _ = await relay.connect()
        await client.send(large_fetch(3000)[:20_000])
        await relay.until(lambda: relay.relay.fetch_memory.total == 20_000)
        (link,) = relay.listener.links
        assert link.from_client.waits_in_line
