"""Batches of unlike sizes: a large one behind small ones has to come, whatever was learned from the small ones."""

from itertools import pairwise

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from weir.quota.batches import REMEMBERED_SECONDS, LargestBatch, LargestBatches
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize("last", [100_000, 900_000])
def test_partition_with_a_large_last_batch_catches_up_beside_live_records(version: int, last: int) -> None:
    """300 live records a second stand in front of it, so no answer of the leader brings more than its cap."""
    clock = MovedClock()
    logs = {(b"t", 0): Log([1_000] * 3_000 + [last]), (b"live", 0): Log([])}
    follower = Follower(dict.fromkeys(logs, 0), version=version)
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=5 * MB, replicas={"t": ALL_REPLICAS}))
    talk = Conversation(clock, throttle.link(2), Leader(logs), follower)
    start, live = clock.now, logs[b"live", 0].batches
    while follower.offsets[b"t", 0] <= 3_000:
        live += [1_000] * (int((clock.now - start) * 300) - len(live))
        talk.exchange()
        assert clock.now - start < 5


def test_links_with_large_batches_take_their_first_answers_one_after_the_other() -> None:
    """Each has to be asked who is in sync, and each probe may bring a batch that no quota can stop."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    links = [throttle.link(replica) for replica in range(2, 12)]
    requests = [Follower({(b"t", 0): 0}, replica_id=link_number).request() for link_number in range(2, 12)]
    leader, start = Leader({(b"t", 0): Log([MB] * 100)}), clock.now
    asked_at: list[float] = []
    waiting = dict.fromkeys(range(len(links)), 0.0)
    while waiting:
        for number, held in list(waiting.items()):
            decision = links[number].plan(requests[number], held)
            if isinstance(decision, Forward):
                asked_at.append(clock.now)
                links[number].settle(leader.answer(decision.request))
                del waiting[number]
            else:
                waiting[number] = clock.now + 0.01 - start
        clock.move(0.01)
    assert all(second - first >= 0.98 for first, second in pairwise(asked_at[:5]))  # each as soon as the last is paid
    assert 5.0 <= asked_at[-1] - asked_at[0] <= 10.0  # but none waits for longer than URGENT_SECONDS


def test_batch_that_one_link_has_seen_surprises_no_other() -> None:
    """What comes first in an answer comes whole: budget is set aside for as large a batch as any link has seen."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=2 * MB, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", 0): Log([50_000, 51_000, 400_000] * 100)})
    Conversation(clock, throttle.link(2), leader, Follower({(b"t", 0): 0})).run(2.0)
    clock.move(6.0)
    second = Conversation(clock, throttle.link(3), leader, Follower({(b"t", 0): 0}, replica_id=3))
    second.exchange()  # it is asked who is in sync, and learns of the first batch
    throttle.release_stuck()  # nothing of the first link is on its way
    assert isinstance(second.next_decision(), Forward)
    assert throttle.ledger.reserved >= 400_000


def test_batch_that_is_long_ago_is_forgotten() -> None:
    largest = LargestBatch()
    largest.learn(400_000, 10.0)
    largest.learn(1_000, 10.0 + REMEMBERED_SECONDS)
    assert largest.size == 400_000
    largest.learn(1_000, 10.0 + 2 * REMEMBERED_SECONDS)
    assert largest.size == 1_000


def test_topic_that_no_link_fetches_is_forgotten() -> None:
    largest_batches = LargestBatches()
    one, same = largest_batches.of(b"t"), largest_batches.of(b"t")
    assert one is same
    one.learn(400_000, 10.0)
    del one, same
    assert largest_batches.of(b"t").size == 0


def test_partition_whose_batches_are_not_known_yet_loses_no_turns() -> None:
    """Its first grant asks for one byte, and one batch comes: it had no more than that."""
    clock = MovedClock()
    throttle = Throttle(
        "leader", 1, clock, ThrottleSettings(rate=5_000, order="round-robin", replicas={"t": ALL_REPLICAS})
    )
    logs = {(b"other", 0): Log([1_000] * 1_000), (b"t", 0): Log([1_000] * 500), (b"t", 1): Log([1_000] * 500)}
    follower = Follower(dict.fromkeys(logs, 0))
    Conversation(clock, throttle.link(2), Leader(logs), follower).run(8.0)
    offsets = follower.offsets[b"t", 0], follower.offsets[b"t", 1]
    assert sum(offsets) >= 30
    assert max(offsets) - min(offsets) <= 2
