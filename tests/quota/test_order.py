# SPDX-License-Identifier: Apache-2.0
"""Which partitions are fed first, and what that does for the time until each is in sync."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import PARTITION_MAX_BYTES, Conversation, Follower, Leader, Log, mean_rate, worst_second
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.protocol.steps import PER_STEP, at_once
from weir.quota.fetch.decisions import Forward, Hold
from weir.quota.fetch.state import ReplicaPartition
from weir.quota.figures import ABSENT_SECONDS, FLOOR, RANK_SECONDS
from weir.quota.settings import Order, Policy, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

RATE = 5_000_000
BATCH = 10_240
PARTITIONS = 20
BATCHES = 400
SIZE = BATCH * BATCHES
RATES: dict[Policy, int] = {"strict": RATE, "kip73": 1_000_000}
"""bytes/s. kip73 grants a second's worth at once: with more than one partition's fetch in it, several go together."""


def conversation(
    order: Order = "urgent-first",
    policy: Policy = "strict",
    version: int = 3,
    sizes: list[int] | None = None,
    rate: int = RATE,
) -> Conversation:
    """Partitions of topic t, all empty at the follower; `sizes` in batches."""
    clock = MovedClock()
    settings = ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}, policy=policy, order=order)
    sizes = sizes or [BATCHES] * PARTITIONS
    leader = Leader({(b"t", partition): Log([BATCH] * size) for partition, size in enumerate(sizes)})
    follower = Follower({(b"t", partition): 0 for partition in range(len(sizes))}, version=version)
    return Conversation(clock, Throttle("leader", 1, clock, settings).link(2), leader, follower)


def is_in_sync(talk: Conversation, partition: int) -> bool:
    return talk.follower.offsets[b"t", partition] == talk.leader.logs[b"t", partition].end


def seconds_to_in_sync(talk: Conversation, partitions: Sequence[int] | None = None) -> list[float]:
    """Run until these (all) partitions are in sync; when each was, in seconds from now on."""
    start = talk.clock.now
    times: dict[int, float] = {}
    wanted = range(len(talk.leader.logs)) if partitions is None else partitions
    while len(times) < len(wanted):
        talk.exchange()
        assert talk.clock.now - start < 200
        for partition in wanted:
            if is_in_sync(talk, partition):
                times.setdefault(partition, talk.clock.now - start)
    return [times[partition] for partition in sorted(times)]


@pytest.mark.long
@pytest.mark.parametrize("policy", ["strict", "kip73"])
@pytest.mark.parametrize("version", [2, 3])
def test_mean_time_to_in_sync_nears_half_of_round_robins(policy: Policy, version: int) -> None:
    rate = RATES[policy]
    urgent_first = conversation("urgent-first", policy, version, rate=rate)
    start = urgent_first.clock.now
    urgent = seconds_to_in_sync(urgent_first)
    in_turn = seconds_to_in_sync(conversation("round-robin", policy, version, rate=rate))
    assert sum(urgent) <= 0.6 * sum(in_turn)
    assert max(urgent) <= 1.1 * max(in_turn)
    if policy == "strict":
        assert 0.95 <= mean_rate(urgent_first.follower.received, start, start + max(urgent)) / RATE <= 1.02
        largest = BATCH if version == 3 else PARTITION_MAX_BYTES
        assert worst_second(urgent_first.follower.received) <= 1.05 * RATE + largest


@pytest.mark.long
def test_order_is_the_same_when_replicas_are_moved_in_again() -> None:
    """What was learned of the last, smaller batches may not split the budget between two partitions at a time."""
    clock = MovedClock()
    batches = [195_600] * 20 + [113_000]
    keys = [(b"t", partition) for partition in range(PARTITIONS)]
    leader = Leader({key: Log(list(batches)) for key in keys} | {(b"other", 0): Log([])})
    settings = ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS})
    hop = Hop(clock, Throttle("leader", 1, clock, settings).link(2), SessionLeader(clock, leader))
    follower = SessionFollower(clock, hop, {(b"other", 0): 0}, version=12)
    means: list[float] = []
    for _ in range(2):
        follower.offsets |= dict.fromkeys(keys, 0)
        start, times = clock.now, dict[tuple[bytes, int], float]()
        while len(times) < PARTITIONS:
            follower.run(0.05)
            assert clock.now - start < 60
            for key in keys:
                if follower.offsets[key] == len(batches):
                    times.setdefault(key, clock.now - start)
        means.append(sum(times.values()) / PARTITIONS)
        for key in keys:
            del follower.offsets[key]
        follower.run(0.05)
    assert means[1] <= 1.05 * means[0]


def test_shortest_comes_first_though_another_one_was_ahead() -> None:
    times = seconds_to_in_sync(conversation(sizes=[6 * BATCHES, BATCHES, 3 * BATCHES]))
    assert times[1] < times[2] < times[0]
    assert times[1] <= 1.3 * SIZE / RATE + RANK_SECONDS


def test_longest_has_its_part_of_the_floor_and_does_not_starve() -> None:
    shorter = PARTITIONS - 1
    talk = conversation(sizes=[20 * BATCHES] + [BATCHES] * shorter)
    talk.run(2.0)  # until sizes are known
    before = talk.follower.offsets[b"t", 0]
    while not all(is_in_sync(talk, partition) for partition in range(1, PARTITIONS)):
        talk.exchange()
    share = (talk.follower.offsets[b"t", 0] - before) * BATCH / (shorter * SIZE)
    assert 0 < share <= FLOOR


@pytest.mark.parametrize("policy", ["strict", "kip73"])
def test_a_partition_that_falls_below_min_isr_comes_first(policy: Policy) -> None:
    rate = RATES[policy]
    talk = conversation(policy=policy, sizes=[5 * BATCHES] * PARTITIONS, rate=rate)
    talk.run(10.0)
    partition = min(range(PARTITIONS), key=lambda one: talk.follower.offsets[b"t", one])
    left = 5 * SIZE - talk.follower.offsets[b"t", partition] * BATCH
    assert left > 4 * SIZE
    talk.link.throttle.set_under_min_isr(frozenset({(b"t", partition)}))
    assert (b"t", partition) in talk.link.throttle.under_min_isr
    start = talk.clock.now
    talk.exchange()
    talk.exchange()  # one of the two may have been the floor's
    assert talk.follower.offsets[b"t", partition] * BATCH > 5 * SIZE - left
    while not is_in_sync(talk, partition):
        talk.exchange()
    assert talk.clock.now - start <= 1.3 * left / rate


def test_what_falls_behind_after_the_ranking_is_in_order_too() -> None:
    talk = conversation()
    talk.run(0.2)
    queue = talk.link.partitions.queue
    *_, last = queue
    queue.leave(last, returns=False)
    assert last not in set(queue.by_rank())
    queue.enter(last)
    assert last in set(queue.by_rank())


def test_only_a_changed_min_isr_is_a_new_generation() -> None:
    throttle = conversation().link.throttle
    generation = throttle.rules.generation
    throttle.set_under_min_isr(frozenset())
    assert throttle.rules.generation == generation
    throttle.set_under_min_isr(frozenset({(b"t", 0)}))
    assert throttle.rules.generation == generation + 1
    assert (b"t", 1) not in throttle.under_min_isr


def silent() -> Log:
    """One that returns no records and no error, as where Kafka's own throttle keeps a partition back at its leader."""
    log = Log([BATCH] * 5000)
    log.is_throttled = True
    return log


@pytest.mark.parametrize("below_min_isr", [False, True])
@pytest.mark.parametrize(("version", "most"), [(2, 1.25), (3, 1.05)])
def test_partition_that_brings_nothing_holds_up_no_others(version: int, most: float, below_min_isr: bool) -> None:
    """With the fewest bytes to go it would come first again and again, and each grant is in vain."""
    without = seconds_to_in_sync(conversation(version=version, sizes=[BATCHES] * 5))
    talk = conversation(version=version, sizes=[BATCHES] * 5 + [BATCHES // 2])
    silent = b"t", 5
    talk.leader.logs[silent].is_throttled = True
    if below_min_isr:
        talk.link.throttle.set_under_min_isr(frozenset({silent}))
    beside_it = seconds_to_in_sync(talk, range(5))
    assert talk.follower.offsets[silent] == 0
    assert sum(beside_it) <= most * sum(without)


def test_a_partition_that_falls_behind_later_is_ranked_soon() -> None:
    talk = conversation(sizes=[2000, 2000, 2000, 10])
    talk.run(2.0)
    assert is_in_sync(talk, 3)
    talk.leader.logs[b"t", 3].extend([BATCH] * 10)
    start = talk.clock.now
    while not is_in_sync(talk, 3):
        talk.exchange()
    assert talk.clock.now - start <= 2 * RANK_SECONDS


def taken_by_each(logs: list[Log], *partitions: list[int]) -> list[int]:
    """Bytes that each link took from the third to the eighth second; partition 1 is below min ISR.

    Each link has these partitions of topic t, and they all ask at once, again and again.
    """
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}))
    throttle.set_under_min_isr(frozenset({(b"t", 1)}))
    leader = Leader({(b"t", partition): log for partition, log in enumerate(logs)})
    links = [throttle.link(2 + index) for index in range(len(partitions))]
    followers = [
        Follower({(b"t", partition): 0 for partition in own}, replica_id=2 + index)
        for index, own in enumerate(partitions)
    ]
    start = clock.now
    waiting: dict[int, float] = {}  # since when a fetch is held
    while clock.now - start < 8.0:
        for index, (link, follower) in enumerate(zip(links, followers, strict=True)):
            decision = link.plan(follower.request(), clock.now - waiting[index] if index in waiting else 0.0)
            if isinstance(decision, Hold):
                waiting.setdefault(index, clock.now)
                continue
            waiting.pop(index, None)
            if isinstance(decision, Forward):
                topics = leader.answer(decision.request)
                link.settle(topics)
                follower.take(topics, clock.now)
        clock.move(0.01)
    return [sum(size for at, size in follower.received if at > start + 2.0) for follower in followers]


def test_link_below_min_isr_goes_before_one_that_waited_longer() -> None:
    """The urgent one gets all of the quota but the floor."""
    taken = taken_by_each([Log([BATCH] * 5000), Log([BATCH] * 5000)], [0], [1])
    assert 0.5 * FLOOR <= taken[0] / sum(taken) <= 1.5 * FLOOR
    assert taken[1] > 0.85 * RATE * 6.0


def test_link_below_min_isr_that_brings_nothing_is_not_ahead() -> None:
    taken = taken_by_each([Log([BATCH] * 5000), silent(), Log([BATCH] * 5000)], [0], [1, 2])
    assert min(taken) > 0.4 * sum(taken)


@pytest.mark.long
def test_grants_in_turn_keep_nothing_of_a_partition_long_gone() -> None:
    talk = conversation("round-robin", sizes=[BATCHES, BATCHES])
    talk.run(1)
    topics = list(talk.link.partitions.topics.values())
    talk.follower.offsets = {(b"other", 0): 0}
    talk.leader.logs[b"other", 0] = Log([BATCH])
    talk.run(ABSENT_SECONDS + 1)
    talk.forwarded.clear()
    gc.collect()
    assert not any(isinstance(one, ReplicaPartition) and one.topic in topics for one in gc.get_objects())


@pytest.mark.parametrize("count", [1, 1_000, 1_999, 2_000, 3_500])
def test_ranking_in_steps_has_the_most_urgent_first_and_all(count: int) -> None:
    link = Throttle("leader", 1, MovedClock(), ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS})).link(2)
    topic, queue = link.partitions.new_topic(b"t"), link.partitions.queue
    topic.batches.bytes_per_offset, topic.batches.largest = 1.0, 1
    waiting = [ReplicaPartition(topic, number, 0, 1, 10 + number * 7_919 % 10_007) for number in range(count)]
    for replica in waiting:
        queue.enter(replica)
    at_risk = {(b"t", count // 2), (b"t", count - 1)}
    link.throttle.set_under_min_isr(frozenset(at_risk))
    at_once(queue.rank_steps(1000.0, 999.0))
    order = list(queue.by_rank())
    first = sorted(waiting, key=lambda one: ((b"t", one.partition) not in at_risk, one.high_watermark))[:PER_STEP]
    assert order[:PER_STEP] == first
    assert order[PER_STEP:] == [one for one in waiting if one not in set(first)]


def test_order_that_becomes_round_robin_leaves_no_link_urgent() -> None:
    talk = conversation(sizes=[5000, 5000, 5000])
    throttle = talk.link.throttle
    throttle.set_under_min_isr(frozenset({(b"t", 2)}))
    seen = set()
    for order in ("urgent-first", "round-robin"):
        throttle.configure(ThrottleSettings(rate=RATE, replicas={"t": ALL_REPLICAS}, order=order))
        talk.run(2.0)
        for _ in range(20):
            talk.exchange()
            seen.add((order, talk.link.partitions.queue.look()[2]))
    assert seen & {("urgent-first", True), ("round-robin", True)} == {("urgent-first", True)}
