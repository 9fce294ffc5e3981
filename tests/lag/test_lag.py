# SPDX-License-Identifier: Apache-2.0
"""KIP-16's replica lag as the wire shows it: time not caught up, silence, and the messages behind."""

import tracemalloc

import pytest

from tests.fakes.clock import MovedClock
from weir.lag.asked_topic import AskedTopic
from weir.lag.topic_lag import LagRow
from weir.lag.tracker import LagTracker

LAG_TIME_MAX = 30.0
FOLLOWER = 2
FETCH_WAIT = 0.5


class Replica:
    """One follower's fetches of partition 0 of `orders`, with the tracker that sees them."""

    def __init__(self, lag_time_max: float = LAG_TIME_MAX) -> None:
        self.clock = MovedClock(1000.0)
        self.tracker = LagTracker(self.clock, lag_time_max)
        self.connect()

    def connect(self) -> None:
        """Ask over a new connection."""
        self.asker = self.tracker.asker()
        self.topic = self.asker.topic(FOLLOWER, b"orders")

    def fetched(self) -> None:
        """Fetch with nothing new: no partition is updated."""
        self.asker.fetched(self.clock())

    def fetch(self, fetch_offset: int, high_watermark: int, partition: int = 0) -> None:
        self.fetched()
        self.topic.update(partition, fetch_offset, high_watermark, self.clock())

    def forget(self, partition: int) -> None:
        known = self.tracker.known(FOLLOWER, b"orders")
        assert known is not None
        known.forget(partition)

    def other(self, replica: int, topic: bytes = b"orders") -> AskedTopic:
        """Another replica that asks over a connection of its own."""
        asker = self.tracker.asker()
        asker.fetched(self.clock())
        return asker.topic(replica, topic)

    def idle_for(self, seconds: float) -> None:
        for _ in range(round(seconds / FETCH_WAIT)):
            self.clock.move(FETCH_WAIT)
            self.fetched()

    @property
    def row(self) -> LagRow:
        (row,) = self.tracker.rows()
        return row


@pytest.fixture
def replica() -> Replica:
    return Replica()


def test_lagging_follower_that_never_reaches_the_end_goes_over(replica: Replica) -> None:
    """KIP-16 scenario 1: it reads fast and never stops, but the end is always ahead of it."""
    for second in range(32):
        replica.fetch(second * 10_000, (second + 1) * 10_000)
        assert replica.row.lag_seconds == second
        replica.clock.move(1.0)
    assert replica.row.lag_seconds > LAG_TIME_MAX
    assert replica.row.lag_messages == 10_000
    assert not replica.row.stuck


def test_lagging_follower_that_catches_up_each_time_stays_under(replica: Replica) -> None:
    """KIP-16 scenario 1: one large batch, however large, is not lag once it was read to the end."""
    end, worst = 0, 0.0
    for _ in range(20):
        replica.fetch(end, end + 1_000_000)
        for _ in range(4):
            replica.clock.move(1.0)
            replica.fetched()
            worst = max(worst, replica.row.lag_seconds)
        end += 1_000_000
        replica.fetch(end, end)
        assert replica.row.lag_seconds == 0
        assert replica.row.lag_messages == 0
    assert worst == 4.0


def test_stuck_follower_shows_silence_though_it_was_caught_up(replica: Replica) -> None:
    """KIP-16 scenario 2: no fetch arrives, and the lag grows with every scrape."""
    replica.fetch(500, 500)
    replica.clock.move(LAG_TIME_MAX)
    assert replica.row == (b"orders", 0, FOLLOWER, LAG_TIME_MAX, 0, False)
    replica.clock.move(0.1)
    assert replica.row.stuck
    replica.clock.move(600.0)
    assert replica.row.lag_seconds == pytest.approx(630.1)


def test_stuck_follower_that_lagged_before_shows_longer_time(replica: Replica) -> None:
    replica.fetch(100, 500)
    replica.idle_for(10.0)
    replica.clock.move(40.0)
    assert replica.row.lag_seconds == 50.0
    assert replica.row.stuck


def test_bootstrapping_follower_lags_until_caught_up_again(replica: Replica) -> None:
    """KIP-16 scenario 3: after ten minutes down its lag does not begin at 0, and ends when it reaches the end."""
    replica.fetch(500, 500)
    replica.idle_for(10.0)
    replica.clock.move(600.0)
    replica.fetched()
    replica.clock.move(0.2)
    replica.topic.update(0, 500, 90_000, replica.clock())
    assert replica.row.lag_seconds == pytest.approx(600.2)
    assert not replica.row.stuck
    for step in range(1, 10):
        replica.clock.move(1.0)
        replica.fetch(500 + step * 8_950, 90_000)
        assert replica.row.lag_seconds == pytest.approx(600.2 + step)
    replica.clock.move(1.0)
    replica.fetch(90_000, 90_000)
    assert replica.row.lag_seconds == 0


def test_bootstrapping_follower_that_lagged_keeps_its_lag_begin(replica: Replica) -> None:
    replica.fetch(400, 500)
    replica.clock.move(600.0)
    replica.fetch(400, 90_000)
    assert replica.row.lag_seconds == 600.0


def test_new_bootstrapping_follower_lags_from_its_first_fetch(replica: Replica) -> None:
    replica.fetch(0, 90_000)
    assert replica.row.lag_seconds == 0
    replica.clock.move(45.0)
    replica.fetch(10_000, 90_000)
    assert replica.row.lag_seconds == 45.0
    assert replica.row.lag_messages == 80_000


def test_lag_of_an_idle_partition_begins_with_a_late_update(replica: Replica) -> None:
    """Nothing new came for a minute after the follower was back, so its old silence is not this lag."""
    replica.fetch(500, 500)
    replica.clock.move(600.0)
    replica.idle_for(60.0)
    replica.fetch(500, 501)
    assert replica.row.lag_seconds == 0


def test_lag_after_catching_up_on_return_begins_anew(replica: Replica) -> None:
    replica.fetch(500, 500)
    replica.clock.move(600.0)
    replica.fetch(500, 500)
    replica.clock.move(0.5)
    replica.fetch(500, 700)
    assert replica.row.lag_seconds == 0


def test_idle_followers_lag_does_not_flap_between_long_polls(replica: Replica) -> None:
    replica.fetch(500, 500)
    replica.clock.move(2.0)
    assert replica.row.lag_seconds == 0
    replica.clock.move(0.1)
    assert replica.row.lag_seconds == pytest.approx(2.1)


def test_silence_grace_is_half_of_a_short_lag_time_max() -> None:
    replica = Replica(lag_time_max=1.0)
    replica.fetch(500, 500)
    replica.clock.move(0.5)
    assert replica.row.lag_seconds == 0
    replica.clock.move(0.25)
    assert replica.row == (b"orders", 0, FOLLOWER, 0.75, 0, False)
    replica.clock.move(0.5)
    assert replica.row.stuck


def test_lag_grows_at_scrape_time_without_an_update(replica: Replica) -> None:
    replica.fetch(100, 500)
    replica.idle_for(7.0)
    assert replica.row.lag_seconds == 7.0
    assert replica.row.lag_messages == 400


def test_update_beyond_the_high_watermark_is_caught_up(replica: Replica) -> None:
    """A leader's high watermark trails its log end, so an in-sync replica asks beyond it."""
    replica.fetch(600, 500)
    assert (replica.row.lag_messages, replica.tracker.sum_messages()) == (0, 0)


def test_update_with_an_unknown_high_watermark_changes_nothing(replica: Replica) -> None:
    """-1 comes with errors; it must neither show a replica as caught up nor as known."""
    replica.fetch(100, -1)
    assert list(replica.tracker.rows()) == []
    replica.fetch(100, 500)
    replica.fetch(100, -1)
    assert replica.row.lag_messages == 400


def test_sum_messages_follows_updates_and_forgets_of_replicas(replica: Replica) -> None:
    replica.fetch(100, 500)
    replica.fetch(0, 50, partition=1)
    other = replica.other(3)
    other.update(0, 493, 500, replica.clock())
    assert replica.tracker.sum_messages() == 457
    replica.fetch(300, 600)
    assert replica.tracker.sum_messages() == 357
    replica.forget(0)
    replica.forget(99)
    assert replica.tracker.sum_messages() == 57
    replica.fetch(50, 50, partition=1)
    assert replica.tracker.sum_messages() == 7
    assert [(row.replica, row.partition) for row in replica.tracker.rows()] == [(FOLLOWER, 1), (3, 0)]


def test_topics_behind_are_those_that_are_so_for_longest() -> None:
    tracker = LagTracker(MovedClock(0.0), LAG_TIME_MAX)
    asked = {name: tracker.asker().topic(FOLLOWER, name) for name in (b"a", b"b", b"c")}
    other = tracker.asker().topic(FOLLOWER + 1, b"a")
    for topic in (*asked.values(), other):
        topic.update(0, 0, 10, 0.0)
    assert tracker.topics_behind(10) == {b"a", b"b", b"c"}
    asked[b"a"].update(0, 10, 10, 1.0)
    assert tracker.topics_behind(10) == {b"a", b"b", b"c"}, "another replica of it is behind"
    asked[b"a"].update(0, 10, 20, 2.0)
    other.update(0, 10, 10, 2.0)
    assert tracker.topics_behind(2) == {b"b", b"c"}, "it was in sync meanwhile"
    asked[b"b"].update(0, 10, 10, 3.0)
    assert tracker.topics_behind(2) == {b"a", b"c"}
    for lag in tracker.topics():
        tracker.drop(lag)
    assert tracker.topics_behind(2) == set()


def test_forget_and_fetch_again_begins_anew(replica: Replica) -> None:
    replica.fetch(100, 500)
    replica.idle_for(40.0)
    replica.forget(0)
    replica.fetch(100, 500)
    assert replica.row.lag_seconds == 0


@pytest.mark.parametrize(("lag_time_max", "expires_after"), [(30.0, 3600.0), (600.0, 6000.0)])
def test_replica_silent_for_long_expires_at_the_next_scrape(lag_time_max: float, expires_after: float) -> None:
    replica = Replica(lag_time_max)
    replica.fetch(100, 500)
    replica.asker.close()
    replica.clock.move(expires_after)
    assert replica.row.stuck
    replica.clock.move(1.0)
    assert list(replica.tracker.rows()) == []
    assert replica.tracker.sum_messages() == 0


@pytest.mark.parametrize(("topics", "partitions"), [(1200, 1), (12, 100)])
def test_many_replicas_that_expired_leave_over_some_scrapes(topics: int, partitions: int) -> None:
    """A broker that led or followed 20,000 topics is gone: to forget all at once would take 30 ms."""
    replica = Replica()
    told = topics * partitions
    for number in range(topics):
        topic = replica.other(FOLLOWER, b"topic-%d" % number)
        for partition in range(partitions):
            topic.update(partition, 0, 1, replica.clock())
        topic.asker.close()
    replica.clock.move(3601.0)
    while told:
        left = sum(1 for _ in replica.tracker.rows())
        assert told - 600 <= left < told
        told = left
    assert replica.tracker.sum_messages() == 0


def test_replica_silent_for_long_on_an_open_connection_lags_on(replica: Replica) -> None:
    replica.fetch(100, 500)
    replica.clock.move(4000.0)
    assert (replica.row.lag_seconds, replica.row.stuck) == (4000.0, True)
    replica.fetched()
    assert (replica.row.lag_messages, replica.row.stuck) == (400, False)


def test_replicas_that_expired_leave_when_a_new_topic_comes() -> None:
    """Memory is bounded without a scrape too: a thousand replicas an hour, each seen once, do not add up."""
    clock = MovedClock(0.0)
    tracker = LagTracker(clock, LAG_TIME_MAX)
    for replica in range(3000):
        asker = tracker.asker()
        asker.fetched(clock())
        asker.topic(replica, b"orders").update(0, 0, 1, clock())
        asker.close()
        clock.move(3.6)
    assert tracker.sum_messages() <= 1002


def test_replica_that_expired_is_back_with_its_next_update(replica: Replica) -> None:
    replica.fetch(100, 500)
    replica.asker.close()
    replica.clock.move(4000.0)
    assert list(replica.tracker.rows()) == []
    replica.connect()
    replica.fetch(100, 500)
    assert (replica.row.lag_messages, replica.row.lag_seconds) == (400, 0)


def test_rows_survive_fetches_between_two_rows(replica: Replica) -> None:
    """The exporter lets the event loop run between rows; topics and partitions come and go meanwhile."""
    for partition in range(4):
        replica.fetch(100, 500, partition)
    rows = replica.tracker.rows()
    first = next(rows)
    replica.fetch(100, 500, 4)
    replica.forget(1)
    replica.other(3, b"new").update(0, 0, 1, replica.clock())
    assert [row.partition for row in (first, *rows)] == [0, 1, 2, 3]


def test_lag_tracker_without_a_lag_time_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 0 seconds, not 0"):
        LagTracker(MovedClock(0.0), 0)


def test_lag_tracker_with_another_lag_time_goes_by_it_at_once(replica: Replica) -> None:
    replica.fetch(500, 500)
    replica.clock.move(1.5)
    assert (replica.row.lag_seconds, replica.row.stuck) == (0, False)
    replica.tracker.replica_lag_time_max = 1.0
    assert (replica.row.lag_seconds, replica.row.stuck) == (1.5, True)
    replica.tracker.replica_lag_time_max = 600.0
    replica.asker.close()
    replica.clock.move(5998.0)
    assert list(replica.tracker.rows())
    with pytest.raises(ValueError, match="more than 0 seconds, not -1"):
        replica.tracker.replica_lag_time_max = -1
    assert replica.tracker.replica_lag_time_max == 600.0


@pytest.mark.long
def test_memory_of_20_000_lagging_partitions_is_below_10_mb() -> None:
    tracemalloc.start()
    try:
        tracker = LagTracker(MovedClock(0.0), LAG_TIME_MAX)
        for number in range(20):
            topic = tracker.asker().topic(FOLLOWER, b"topic-%d" % number)
            for partition in range(1000):
                topic.update(partition, partition, 10**9, float(partition))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(1 for _ in tracker.rows()) == 20_000
    assert used < 10_000_000
