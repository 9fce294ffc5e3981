# SPDX-License-Identifier: Apache-2.0
"""Each partition has a lag of its own: what its replica asks for no more lags, whatever else that replica fetches."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Leader, Log
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.lag.topic_lag import LagRow
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

FOLLOWER = 2
LOST, KEPT = (b"t", 0), (b"t", 1)
NOT_LEADER, UNKNOWN_TOPIC = 6, 3
LAG_TIME_MAX = 30.0
GRACE = 2.0


class Fetching:
    """A follower that is in sync with its leader on two partitions, over one connection."""

    def __init__(self, version: int, side: SideName = "leader", beside: Fetching | None = None) -> None:
        self.clock: MovedClock = MovedClock() if beside is None else beside.clock
        self.throttle: Throttle = Throttle(side, 1, self.clock) if beside is None else beside.throttle
        self.throttle.brokers.learn([FOLLOWER])
        self.version = version
        self.logs = {key: Log([100]) for key in (LOST, KEPT)}
        self.connect(dict.fromkeys(self.logs, 1))

    def connect(self, offsets: dict[tuple[bytes, int], int]) -> None:
        self.link = self.throttle.link(FOLLOWER)
        hop = Hop(self.clock, self.link, SessionLeader(self.clock, Leader(self.logs)))
        self.follower = SessionFollower(self.clock, hop, offsets, self.version, FOLLOWER)

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            before = self.clock.now
            self.follower.fetch()
            self.clock.now = max(self.clock.now, before + 0.1)

    def rows(self) -> dict[tuple[bytes, int], LagRow]:
        return {(row.topic, row.partition): row for row in self.throttle.lag.rows()}


@pytest.fixture(params=[3, 7, 12])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_partition_no_longer_asked_for_lags_beside_others(version: int) -> None:
    """One of two log directories is full: the follower drops its partitions, and fetches the others."""
    fetching = Fetching(version)
    fetching.run(5)
    assert [row.lag_seconds for row in fetching.rows().values()] == [0, 0]
    del fetching.follower.offsets[LOST]
    fetching.run(55)
    rows = fetching.rows()
    assert rows[LOST].lag_seconds == pytest.approx(55, abs=1)
    assert rows[LOST].stuck
    assert (rows[KEPT].lag_seconds, rows[KEPT].stuck) == (0, False)


def test_partition_asked_for_again_lags_since_it_went(version: int) -> None:
    """It lags until it is caught up."""
    fetching = Fetching(version)
    fetching.run(1)
    del fetching.follower.offsets[LOST]
    fetching.run(40)
    fetching.logs[LOST].extend([100] * 5)
    fetching.follower.offsets[LOST] = 1
    fetching.link.throttle.configure(ThrottleSettings(rate=0, replicas={"t": ALL_REPLICAS}))
    fetching.follower.fetch()
    assert fetching.rows()[LOST].lag_seconds == pytest.approx(41, abs=2)
    fetching.follower.offsets[LOST] = 6
    fetching.follower.fetch()
    fetching.run(1)
    assert (fetching.rows()[LOST].lag_seconds, fetching.rows()[LOST].lag_messages) == (0, 0)


def test_silent_connection_is_seen_beside_another_of_its_topic(version: int) -> None:
    """One of two fetcher threads died: its connection stays open."""
    silent = Fetching(version)
    silent.follower.offsets.pop(KEPT)
    silent.run(1)
    other = Fetching(version, beside=silent)
    other.follower.offsets.pop(LOST)
    other.run(50)
    rows = silent.rows()
    assert rows[LOST].lag_seconds == pytest.approx(50, abs=1)
    assert rows[KEPT].lag_seconds == 0


def test_partition_taken_over_by_another_connection_has_no_lag(version: int) -> None:
    """A fetcher connects anew, and the old connection is closed later."""
    fetching = Fetching(version)
    fetching.run(1)
    first = fetching.link
    fetching.connect(dict(fetching.follower.offsets))
    fetching.run(1)
    first.close()
    fetching.run(40)
    assert {key: row.lag_seconds for key, row in fetching.rows().items()} == {LOST: 0, KEPT: 0}


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_partition_with_errors_lags_since_its_last_good_answer(version: int, side: SideName) -> None:
    fetching = Fetching(version, side)
    fetching.run(5)
    fetching.logs[LOST].error_code = NOT_LEADER
    fetching.run(50)
    rows = fetching.rows()
    assert rows[LOST].lag_seconds == pytest.approx(50, abs=1)
    assert rows[LOST].stuck
    assert rows[KEPT].lag_seconds == 0
    fetching.logs[LOST].error_code = 0
    fetching.follower.fetch()
    fetching.follower.fetch()
    assert fetching.rows()[LOST].lag_seconds == 0


def test_error_for_a_moment_is_not_lag(version: int) -> None:
    fetching = Fetching(version)
    fetching.run(5)
    fetching.logs[LOST].error_code = NOT_LEADER
    fetching.run(GRACE - 0.5)
    assert fetching.rows()[LOST].lag_seconds == 0


def test_follower_at_the_wrong_leader_lags_at_once_on_its_side(version: int) -> None:
    """Egress upstreams that were swapped in the configuration: there never was a good answer."""
    fetching = Fetching(version, "follower")
    for log in fetching.logs.values():
        log.error_code = NOT_LEADER
    fetching.run(50)
    rows = fetching.rows()
    assert list(rows) == [LOST, KEPT]
    assert [row.lag_seconds for row in rows.values()] == [pytest.approx(50, abs=1)] * 2
    assert all(row.stuck for row in rows.values())


@pytest.mark.parametrize(
    ("side", "error_code"), [("leader", NOT_LEADER), ("leader", UNKNOWN_TOPIC), ("follower", UNKNOWN_TOPIC)]
)
def test_partition_its_leader_never_answered_for_has_no_lag(version: int, side: SideName, error_code: int) -> None:
    """What this broker does not lead, and topics that somebody made up."""
    fetching = Fetching(version, side)
    fetching.logs[LOST].error_code = error_code
    fetching.run(50)
    assert list(fetching.rows()) == [KEPT]


def test_partition_is_looked_at_no_more_while_nothing_changes(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fetching = Fetching(version)
    fetching.run(5)
    calls: list[object] = []
    for name in ("ask", "leave", "update", "refuse", "answer"):
        monkeypatch.setattr(f"weir.lag.asked_topic.AskedTopic.{name}", lambda *seen, **_: calls.append(seen))
    fetching.run(60)
    assert calls == []
    assert {row.lag_seconds for row in fetching.rows().values()} == {0}
