# SPDX-License-Identifier: Apache-2.0
"""The last ten minutes that the page shows: rates, and how the lag went."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from weir.limits.clients import Clients
from weir.proxy.admin.history import KEPT_SAMPLES, History, Trend
from weir.proxy.log import EventLog
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.quota.scopes import Recovering
from weir.quota.settings import QuotaSettings, ThrottleSettings
from weir.quota.throttle import Throttle


class Past:
    """A leader's side, whose totals a test sets second by second."""

    def __init__(self, rate: int | None = 500) -> None:
        self.clock = MovedClock(1000.0)
        self.throttle = Throttle("leader", 1, self.clock, ThrottleSettings(rate=rate))
        clients = Clients(self.clock, lambda *fault: None)
        self.history = History([Side(self.throttle, RelayStats("leader"), EventLog())], clients, self.clock)
        self._lag = self.throttle.lag.asker().topic(2, b"orders")

    def second(self, throttled: int = 0, other: int = 0, lag: int = 0, count: int = 1) -> None:
        for _ in range(count):
            self.clock.move(1)
            self.throttle.stats.replication_bytes[2, True] += throttled
            self.throttle.record(self.throttle.quotas[0], throttled)
            self.throttle.stats.replication_bytes[3, False] += other
            self._lag.update(0, 0, lag, self.clock())
            self.history.take()

    def found(self, partition: int, lag: int) -> None:
        self._lag.update(partition, 0, lag, self.clock())

    def forgotten(self, partition: int) -> None:
        topic = self.throttle.lag.known(2, b"orders")
        assert topic is not None
        topic.forget(partition)

    @property
    def trend(self) -> Trend:
        return self.history.sides[0].trend(self.clock())


def test_history_has_throttled_and_other_rates_and_the_quota() -> None:
    past = Past()
    past.second(100)
    past.second(300, 40, lag=7)
    past.clock.move(1)  # a sample is late: what passed meanwhile is spread over it
    past.second(1000)
    assert past.history.as_plain(0) == {
        "now": 1004.0,
        "sides": {
            "leader": {
                "at": [1002.0, 1004.0],
                "throttled": [300.0, 500.0],
                "other": [40.0, 0.0],
                "lag_messages": [7, 0],
                "quotas": {"configured": {"limit": [500, 500], "rate": [300.0, 500.0]}},
            }
        },
    }


def test_history_shows_only_what_is_later_than_asked_for() -> None:
    past = Past()
    past.second(count=5)
    assert past.history.as_plain(1003.0)["sides"]["leader"]["at"] == [1004.0, 1005.0]
    assert past.history.as_plain(float("nan"))["sides"]["leader"]["at"] == []


def test_history_keeps_ten_minutes() -> None:
    past = Past(rate=None)
    past.second(5, count=2 * KEPT_SAMPLES)
    columns = past.history.as_plain(0)["sides"]["leader"]
    assert len(columns["at"]) == 600
    assert columns["quotas"] == {}


def test_history_of_a_quota_begins_and_ends_with_it() -> None:
    past = Past(rate=None)
    past.second(count=2)
    past.throttle.configure(ThrottleSettings(quotas=(QuotaSettings("recovery", 70, Recovering(True)),)))
    past.second()
    past.throttle.record(past.throttle.quotas[1], 30)
    past.second()
    past.throttle.configure(ThrottleSettings())
    past.second()
    assert past.history.as_plain(0)["sides"]["leader"]["quotas"] == {
        "recovery": {"limit": [None, 70, 70, None], "rate": [0.0, 0.0, 30.0, 0.0]}
    }


def test_history_bytes_counted_elsewhere_make_no_negative_rate() -> None:
    past = Past()
    past.second(100, count=2)
    del past.throttle.stats.replication_bytes[2, True]
    past.second()
    assert past.history.as_plain(0)["sides"]["leader"]["throttled"] == [100.0, 0.0]


def test_trend_of_a_falling_lag_is_what_it_fell_by_in_a_minute() -> None:
    past = Past()
    for messages in range(10_000, 0, -100):
        past.second(lag=messages)
    assert past.trend[0] == pytest.approx(100.0)
    assert past.trend[1:] == (False, 0.0, 0)


def test_trend_takes_a_lag_that_becomes_known_for_no_growth() -> None:
    past = Past()
    for messages in range(3_000, 1_800, -100):
        past.second(lag=messages)
        if messages == 2_500:
            past.found(1, 8_000)
    assert past.trend[0] == pytest.approx(100.0)


def test_trend_takes_a_forgotten_partition_for_no_progress() -> None:
    past = Past()
    past.found(1, 8_000)
    for messages in range(3_000, 1_800, -100):
        past.second(lag=messages)
        if messages == 2_500:
            past.forgotten(1)
    assert past.trend[0] == pytest.approx(100.0)


def test_trend_is_not_told_before_ten_seconds_behind() -> None:
    past = Past()
    past.second(count=100)
    past.second(lag=50, count=10)
    assert past.trend[0] is None
    past.second(lag=50)
    assert past.trend[0] == 0.0


def test_trend_lag_stands_still_after_a_whole_minute_only() -> None:
    past = Past()
    past.second(lag=50, count=50)
    assert not past.trend[1]
    past.second(lag=51, count=12)
    assert past.trend[1]
    past.second(lag=49)
    assert not past.trend[1]


def test_trend_counts_how_long_nothing_is_behind() -> None:
    """From the start on: of what was before, a sidecar knows nothing."""
    past = Past()
    past.second(count=30)
    assert past.trend == (None, False, 30.0, 0)
    past.second(lag=3)
    assert past.trend[2] == 0.0
    past.second(count=700)
    assert past.trend[2] == 700.0


def test_history_tells_what_passed_beside_the_throttle() -> None:
    """Bytes are those of the last ten minutes."""
    past = Past()
    past.throttle.stats.catch_up_beside_throttle = 5
    past.second()
    past.throttle.stats.catch_up_beside_throttle = 12
    past.second()
    assert past.trend.catch_up_bytes == 7
    past.second(count=KEPT_SAMPLES)
    assert past.trend.catch_up_bytes == 0
