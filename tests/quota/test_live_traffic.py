# SPDX-License-Identifier: Apache-2.0
"""A move beside live traffic on the same link: a record in sync waits behind every answer, so answers are small.

What is granted goes along with a live record: an answer of its own would be one more for records to wait behind.
"""

from collections.abc import Sequence

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, requested
from tests.quota.sessions import BATCH, MB, Cluster, cluster
from weir.protocol.fetch_request import FetchRequest
from weir.quota.fetch.decisions import Forward
from weir.quota.fetch.link import ReplicaLink
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

pytestmark = pytest.mark.long

RATE = 5 * MB
RECORD = 1_000
LIVE = (b"idle", 0)
EVEN_AFTER_SECONDS = 10.0  # what gathered until the first batch was seen came at once, and leaves the window so
LARGEST_SHARE = 0.016 * RATE + BATCH  # bytes: 0.012 s of quota, and what gathers in a round trip (4 ms)


def run(made: Cluster, seconds: float, *, is_live: bool) -> list[tuple[float, int]]:
    """Run; where `is_live` each fetch finds a new record of a partition in sync. Returns what is moved: time, bytes."""
    live = made.leader.leader.logs[LIVE]
    live.fetched(2, live.end, made.clock.now)
    made.follower.received.clear()
    end = made.clock.now + seconds
    while made.clock.now < end:
        if is_live:
            live.append(RECORD)
        made.follower.fetch()
    assert live.isr, "Kafka keeps who finds a new record in each answer"
    return [(at, size - RECORD * is_live) for at, size in made.follower.received]


def largest(moved: list[tuple[float, int]], start: float) -> int:
    return max(size for at, size in moved if at > start)


def test_answers_are_small_beside_live_records_at_full_quota() -> None:
    made = cluster(RATE)
    start = made.clock.now + EVEN_AFTER_SECONDS
    moved = run(made, EVEN_AFTER_SECONDS + 10, is_live=True)
    assert largest(moved, start) <= LARGEST_SHARE
    assert 0.97 <= mean_rate(moved, start, made.clock.now) / RATE <= 1.01


def test_answers_are_large_again_soon_after_live_records_end() -> None:
    """What is moved is no live traffic itself."""
    made = cluster(RATE)
    run(made, 6.0, is_live=True)
    start = made.clock.now
    assert largest(run(made, 3.0, is_live=False), start + 1.2) > 5 * LARGEST_SHARE


def talk_beside_live_records(
    seconds: float,
    *,
    batches: Sequence[int] = (BATCH,) * 8000,
    is_live: bool = True,
    response_max_bytes: int | None = None,
) -> Conversation:
    """One partition behind, of `batches` (bytes), and one of another topic that gets a record between two fetches."""
    clock = MovedClock()
    settings = ThrottleSettings(RATE, {"t": ALL_REPLICAS}, response_max_bytes=response_max_bytes)
    throttle = Throttle("leader", 1, clock, settings)
    leader = Leader({(b"t", 0): Log([*batches]), LIVE: Log([RECORD])})
    talk = Conversation(clock, throttle.link(2), leader, Follower({(b"t", 0): 0, LIVE: 1}))
    leader.logs[LIVE].fetched(2, 1, clock.now)
    end = clock.now + seconds
    while clock.now < end:
        if is_live:
            leader.logs[LIVE].append(RECORD)
        talk.exchange()
    assert leader.logs[LIVE].isr, "Kafka keeps who finds a new record in each answer"
    return talk


def test_live_records_in_every_answer_hold_up_no_move() -> None:
    """They come first, so that a cap below one batch, which is not known yet, brings nothing."""
    talk = talk_beside_live_records(1.0)
    assert talk.follower.offsets[b"t", 0] > 0


def granting(talk: Conversation) -> list[tuple[FetchRequest, int]]:
    """The requests that were forwarded with a grant, and how much it was (bytes)."""
    sizes = ((one.request, requested(one.request).get((b"t", 0), (0, 0))[1]) for one in talk.forwarded)
    return [(request, size) for request, size in sizes if size > 1]


def test_grants_wait_for_a_live_record_for_20_ms_at_most() -> None:
    talk = talk_beside_live_records(EVEN_AFTER_SECONDS + 3)
    for request, size in granting(talk)[-50:]:
        assert request.min_bytes == size + 1
        assert request.max_wait_ms == 20


def test_what_is_granted_comes_at_once_if_it_fills_the_answer() -> None:
    """With 20 ms for each answer of 4 batches a third of the quota would be used."""
    talk = talk_beside_live_records(3.0, response_max_bytes=4 * BATCH)
    full = {request.min_bytes for request, size in granting(talk) if size > 2 * BATCH}
    assert full == {1}


def test_what_is_granted_comes_at_once_without_live_records() -> None:
    talk = talk_beside_live_records(3, batches=[40_000, 20_000] * 1000, is_live=False)
    assert {request.min_bytes for request, _ in granting(talk)} == {1}


def test_grant_comes_at_once_where_a_partition_may_have_less() -> None:
    """No live record would make up for the bytes that are not there."""
    batches = [BATCH] * 4000 + [100] * 4
    talk = talk_beside_live_records(EVEN_AFTER_SECONDS + 20, batches=batches)
    assert talk.follower.offsets[b"t", 0] == len(batches)
    offsets = [requested(request)[b"t", 0][0] for request, _ in granting(talk)]
    too_large = [
        request for (request, size), at in zip(granting(talk), offsets, strict=True) if size > sum(batches[at:])
    ]
    assert too_large
    assert {request.min_bytes for request in too_large} == {1}


def test_what_is_granted_late_comes_at_once() -> None:
    """A leader that takes long has the budget gather: there is no time to wait for anything."""
    talk = talk_beside_live_records(EVEN_AFTER_SECONDS + 1)
    talk.round_trip = 0.05
    for _ in range(20):
        talk.leader.logs[LIVE].append(RECORD)
        talk.exchange()
    assert {request.min_bytes for request, _ in granting(talk)[-10:]} == {1}


def test_live_records_do_not_wait_for_what_is_left_out_here() -> None:
    """An earlier hop granted it, and this one leaves it out."""
    talk = talk_beside_live_records(EVEN_AFTER_SECONDS + 1)
    left_out = _until_left_out(talk.link, talk.follower.request())
    assert left_out.min_bytes == 1


def over_a_slow_link(carries: float, round_trip: float, *, is_live: bool = True) -> int:
    """Fifty answers, each passing at `carries` bytes/s once its first byte came. The most granted in the last forty."""
    talk = talk_beside_live_records(EVEN_AFTER_SECONDS + 1, is_live=is_live)
    sizes = []
    for _ in range(50):
        if is_live:
            talk.leader.logs[LIVE].append(RECORD)
        decision = talk.next_decision()
        assert isinstance(decision, Forward)
        sizes.append(requested(decision.request).get((b"t", 0), (0, 0))[1])
        topics = talk.leader.answer(decision.request)
        talk.clock.move(round_trip)
        talk.link.answer_begins(0)
        for _ in range(4):  # in pieces, of which the first one tells
            talk.clock.move(sizes[-1] / carries / 4)
            talk.link.answer_begins(0)
        talk.link.settle(topics)
        talk.follower.take(topics, talk.clock.now)
    return max(sizes[10:])


def test_grants_beside_live_records_do_not_grow_by_what_gathers() -> None:
    """Else they would grow until each takes 0.15 s to pass, here on a link that carries little more than the quota."""
    carries = 1.05 * RATE
    assert over_a_slow_link(carries, 0.004) <= 0.04 * carries + BATCH
    assert over_a_slow_link(carries, 0.004, is_live=False) > 2 * 0.04 * carries


def test_distant_leaders_grants_grow_beside_live_records_too() -> None:
    """There TCP takes round trips for them: smaller answers would come hardly sooner."""
    assert over_a_slow_link(1.5 * RATE, 0.08) > 0.08 * RATE


def _until_left_out(link: ReplicaLink, request: FetchRequest) -> FetchRequest:
    """Plan a request with a min_bytes of its own, again and again, until the throttle leaves its partition out."""
    for _ in range(20):
        decision = link.plan(request.with_(min_bytes=60_001))
        assert isinstance(decision, Forward)
        if not requested(decision.request).get((b"t", 0), (0, 0))[1]:
            return decision.request
    raise AssertionError("it is never left out")
