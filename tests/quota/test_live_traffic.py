"""A move beside live traffic on the same link: a record in sync waits behind every answer, so answers are small."""

from tests.quota.conversation import mean_rate
from tests.quota.test_fetch_sessions import BATCH, MB, Cluster, cluster

RATE = 5 * MB
RECORD = 1_000
LIVE = (b"idle", 0)
EVEN_AFTER_SECONDS = 4.0  # what gathered until the first batch was seen came at once, and leaves the window so
LARGEST_SHARE = 0.016 * RATE + BATCH  # bytes: 0.012 s of quota, and what gathers in a round trip (4 ms)


def run(made: Cluster, seconds: float, *, is_live: bool) -> list[tuple[float, int]]:
    """Run; where `is_live` each fetch finds a new record of a partition in sync. Returns what is moved: time, bytes."""
    made.follower.received.clear()
    end = made.clock.now + seconds
    while made.clock.now < end:
        if is_live:
            made.leader.leader.logs[LIVE].batches.append(RECORD)
        made.follower.fetch()
    return [(at, size - RECORD * is_live) for at, size in made.follower.received]


def largest(moved: list[tuple[float, int]], start: float) -> int:
    return max(size for at, size in moved if at > start)


def test_answers_are_small_beside_live_records_and_the_quota_is_used_all_the_same() -> None:
    made = cluster(RATE)
    start = made.clock.now + EVEN_AFTER_SECONDS
    moved = run(made, EVEN_AFTER_SECONDS + 10, is_live=True)
    assert largest(moved, start) <= LARGEST_SHARE
    assert 0.97 <= mean_rate(moved, start, made.clock.now) / RATE <= 1.01


def test_answers_are_large_again_soon_after_the_last_live_record() -> None:
    """What is moved is no live traffic itself."""
    made = cluster(RATE)
    run(made, 6.0, is_live=True)
    start = made.clock.now
    assert largest(run(made, 3.0, is_live=False), start + 1.2) > 5 * LARGEST_SHARE
