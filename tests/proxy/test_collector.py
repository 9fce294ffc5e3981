# SPDX-License-Identifier: Apache-2.0
"""Links that end leave nothing that only Python's collector could find, and all objects are looked at seldom."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from types import GeneratorType

import pytest

from tests.fakes.relaying import Peer, Relaying, relaying, round_trip
from tests.protocol.wire import fetch, request
from tests.proxy.test_link_large import large_answer, name, receive_frame
from weir.protocol.fetch_request import FetchRequest, encode_fetch_request, replica_state_tags
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import Head, RequestHead
from weir.protocol.request_topics import RequestTopic
from weir.proxy.collector import LEAST_GROWTH, Collector, resident_bytes
from weir.proxy.relay.open_link import OpenLink
from weir.proxy.relay.outcomes import GateState, Outcome, PassOn, Wait, Waiting
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

PARTITIONS = 1_000
OURS = frozenset({"protocol", "lag", "proxy", "quota"})
KEPT = frozenset({"AskedTopic", "Asker", "TopicLag", "_Unnamed"})  # what is known of lag and of ids outlives links

End = Callable[[Relaying, Peer, Peer], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """Objects of ours that the collector knows of."""
    objects = gc.get_objects()
    names = Counter[str]()
    for kind, count in Counter(map(type, objects)).items():
        if str(kind.__module__).removeprefix("weir.").partition(".")[0] in OURS:
            names[kind.__name__] += count
    names["generator"] = sum(
        any(f"/{part}/" in one.gi_code.co_filename for part in OURS)
        for one in objects
        if isinstance(one, GeneratorType)
    )
    return Counter({name: count for name, count in names.items() if name not in KEPT})


async def opaque(relay: Relaying, client: Peer, broker: Peer) -> None:
    await client.send(b"\x16\x03\x01 hello")
    await broker.expect(b"\x16\x03\x01 hello")


async def a_request(relay: Relaying, client: Peer, broker: Peer) -> None:
    await round_trip(client, broker, 1)


async def half_a_fetch(relay: Relaying, client: Peer, broker: Peer) -> None:
    await client.send(fetch(1, 5)[:-3])
    await relay.until(lambda: relay.relay.fetch_memory.total > 0)


async def a_malformed_request(relay: Relaying, client: Peer, broker: Peer) -> None:
    await client.send(b"\xff\xff\xff\xff")
    await client.expect_end()


async def an_answer_that_is_none(relay: Relaying, client: Peer, broker: Peer) -> None:
    await client.send(request(3, 0, 7))
    await broker.expect(request(3, 0, 7))
    await broker.send(b"\x00\x00\x00\x08\x00\x00\x00\x63\x00\x00\x00\x00")
    await client.expect_end()


def full_fetch(version: int, correlation_id: int) -> bytes:
    row = fetch_version(version)
    entry = row.request_partition.layout.pack(
        *[2**20 * (field == "partition_max_bytes") for field in row.request_partition.names]
    )
    entry += b"\0" * row.is_flexible
    asked = [RequestTopic(name(number), entry, len(entry)) for number in range(PARTITIONS)]
    header = RequestHeader(FETCH, version, correlation_id, b"c")
    tags = replica_state_tags(5, 1) if version >= 15 else b""
    return encode_fetch_request(FetchRequest(header, 5, 500, 1, 2**20, asked, session_epoch=0, tags=tags))


def fetches(version: int, *, answered: int, asked: int) -> End:
    async def fetched(relay: Relaying, client: Peer, broker: Peer) -> None:
        for number in range(asked):
            await client.send(full_fetch(version, number))
            if number < answered:
                await receive_frame(broker)
                await broker.send(large_answer(version, number, PARTITIONS))
                await receive_frame(client)
        if asked > answered:
            await relay.until(lambda: len(relay.relay.held))

    return fetched


class HoldingGate:
    """Holds what comes, and refers to its link as the gate of limits does."""

    def __init__(self, link: OpenLink) -> None:
        self.link = link

    def may_hold(self, head: RequestHead, frame: Head, may_be_replicas: bool, /) -> bool:
        return True

    def arrived(self, request: RequestBegins) -> Waiting[Outcome]:
        while self.link:
            yield Wait(math.inf)
        return PassOn()

    def standing(self, *, sends: bool) -> GateState:
        return GateState()

    def go_on_from(self, before: GateState) -> None:
        pass

    def gone(self) -> None:
        pass


async def held_by_a_gate(relay: Relaying, client: Peer, broker: Peer) -> None:
    relay.relay.new_gate = HoldingGate
    await relay.until(lambda: relay.listener.links)
    (link,) = relay.listener.links
    link.use_gate()
    await client.send(request(3, 0, 7))
    await relay.until(lambda: link.connection.hold)


ENDS = {
    "held by a gate": held_by_a_gate,
    "opaque": opaque,
    "a request": a_request,
    "half a fetch": half_a_fetch,
    "a malformed request": a_malformed_request,
    "an answer that is none": an_answer_that_is_none,
    **{f"two fetches v{version}": fetches(version, answered=2, asked=2) for version in (3, 7, 18)},
    **{f"a held fetch v{version}": fetches(version, answered=1, asked=2) for version in (3, 7)},
}


@pytest.mark.long
@pytest.mark.parametrize("what", ENDS)
async def test_a_link_that_ends_leaves_nothing_for_the_collector(what: str) -> None:
    end, rate = ENDS[what], 0 if "held" in what else 10**9
    async with relaying() as relay:
        held = {name(number).decode(): ALL_REPLICAS for number in range(PARTITIONS)}
        relay.relay.throttle = throttle = Throttle(
            "leader", 1, time.monotonic, ThrottleSettings(rate=rate, replicas=held)
        )

        async def link() -> None:
            client, broker = await relay.connect()
            await end(relay, client, broker)
            client.close()
            broker.close()
            await relay.until(lambda: relay.stats.connections == 0 and not len(relay.relay.turns))
            await asyncio.sleep(0)

        await link()  # what is made once stays
        before = alive()
        for _ in range(2):
            await link()
        assert alive() - before == Counter()
        assert not throttle.links


@pytest.mark.long
async def test_connection_that_changes_version_leaves_no_garbage() -> None:
    """Nothing is left that only Python's collector would free."""
    async with relaying() as relay:
        relay.relay.throttle = Throttle("leader", 1, time.monotonic)
        client, broker = await relay.connect()

        async def fetched(version: int) -> None:
            await client.send(full_fetch(version, 1))
            await receive_frame(broker)
            await broker.send(large_answer(version, topics=PARTITIONS))
            await receive_frame(client)
            await relay.until(lambda: not len(relay.relay.turns))

        for version in (3, 7, 3):
            await fetched(version)
        before = alive()
        for version in (7, 3):
            await fetched(version)
        assert sum((alive() - before).values()) < PARTITIONS


class Machine:
    """A process, as far as a collector has to know it."""

    def __init__(self) -> None:
        self.is_idle = False
        self.resident = 0
        self.looks = 0
        self.given_back = 0
        self.collector = Collector(lambda: self.is_idle, lambda: self.resident, self._look, self._give_back)

    def _look(self) -> None:
        self.looks += 1

    def _give_back(self) -> None:
        self.given_back += 1

    def work(self) -> None:
        """Let some objects become old."""
        gc.collect(1)


def test_all_objects_are_looked_at_once_after_an_idle_while() -> None:
    """An idle while is one without an open connection."""
    machine = Machine()
    machine.work()
    machine.collector.check()
    machine.is_idle = True
    machine.collector.check()
    assert machine.looks == 0  # the last connection may have ended just now
    for _ in range(3):
        machine.collector.check()
    assert machine.looks == 1
    machine.work()
    machine.collector.check()
    assert machine.looks == 2


def test_all_objects_are_looked_at_when_memory_has_doubled() -> None:
    machine = Machine()
    for resident, looks in ((LEAST_GROWTH, 0), (LEAST_GROWTH + 1, 1), (2 * LEAST_GROWTH, 1), (2 * LEAST_GROWTH + 3, 2)):
        machine.resident = resident
        machine.collector.check()
        assert machine.looks == looks


def test_free_memory_goes_back_in_every_check() -> None:
    machine = Machine()
    for checks in range(1, 4):
        machine.collector.check()
        assert (machine.given_back, machine.looks) == (checks, 0)


def test_memory_below_a_block_in_use_goes_back_to_the_system() -> None:
    answers, others = [], []
    for _ in range(300):
        answers.append(bytes(90_000))
        others.append(bytes(30_000))
    before = resident_bytes()
    answers.clear()
    Collector(lambda: False, resident_bytes).check()
    assert resident_bytes() < before - 15 * 2**20


@pytest.mark.long
async def test_while_it_runs_python_looks_at_young_objects_only() -> None:
    before = gc.get_threshold()
    collector = Collector(lambda: True, resident_bytes)
    collector.start()
    try:
        assert gc.get_threshold()[2] > 1_000_000_000
        assert gc.get_freeze_count() > 0
    finally:
        collector.stop()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_the_memory_of_this_process_is_known() -> None:
    assert 10 * 2**20 < resident_bytes() < 10 * 2**30
