# SPDX-License-Identifier: Apache-2.0
"""What the tables tell a planner: bytes in, their growth, how much is kept, and what past throttles delivered.

Parquet is read with DuckDB (the extra `history`), which needs no Java.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from weir.pipeline.open_tables import OpenTables, TablesError
from weir.pipeline.page.read_verdict import read_open_moves
from weir.pipeline.page.verdict import OpenMove
from weir.pipeline.tables import BEHIND_MINUTES, BROKER_RATES, COVERAGE, MOVES, THROTTLE_ACCURACY, WINDOW_SECONDS
from weir.planning.arithmetic import COVERAGE as ENOUGH
from weir.planning.arithmetic import GROWTH_PERIODS, Growth, bytes_in_weights, growth_ratio
from weir.quota.settings import SideName


@dataclass(frozen=True, slots=True)
class Busiest:
    """The window with the most bytes in on one broker: their mean in bytes/s over a `window` ("minute" or "hour")."""

    broker_id: int
    start: datetime
    window: str
    rate: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What past throttles that left something out achieved: count, mean rate / quota, and worst second / quota.

    The mean is that of `seconds`, the time in which partitions were left out. At other times less had to be moved than
    the quota allows.
    """

    throttles: int
    seconds: float
    mean: float
    worst_second: float


@dataclass(frozen=True, slots=True)
class History:
    """What was seen from `since` to `until` (UTC) on one broker, or on all of them.

    - `brokers`: how many brokers the tables have.
    - `throttled_share`: the part of all replication bytes that was of throttled replicas. They do not count as bytes
      in, as most of them are catch-up of earlier moves.
    - `busiest`: None where all bytes were throttled. `busiest_by_night` is that from 22 to 6 o'clock, UTC.
    - `log_size`: bytes that came into a broker within the retention asked for, as a mean of the brokers seen long
      enough.
    - `open_moves`: those that are open at the end; None where the tables do not tell.
    """

    since: datetime
    until: datetime
    brokers: int
    throttled_share: float
    busiest: Busiest | None
    busiest_by_night: Busiest | None
    growth: Growth | None
    accuracy: Accuracy | None
    log_size: float | None
    open_moves: tuple[OpenMove, ...] | None


def read_history(
    path: Path,
    *,
    replication_factor: int,
    last_seconds: float,
    policy: str,
    broker: int | None = None,
    retention_seconds: float | None = None,
) -> History:
    """Read the tables under `path`; TablesError where they do not have what is asked for.

    It looks back `last_seconds` from the newest window, and at throttles of one `policy`. Growth (two weeks) and log
    size (the retention) may look back further.
    """
    if replication_factor < 2:
        raise TablesError("with a replication factor of 1 nothing is replicated, and a history says nothing")
    with OpenTables(path) as tables:
        tables.open(BROKER_RATES)
        if tables.has(COVERAGE):
            tables.open(COVERAGE)
        accuracy_known = tables.has(THROTTLE_ACCURACY)
        if accuracy_known:
            tables.open(THROTTLE_ACCURACY)
        moves_known = tables.has(MOVES) and tables.has(BEHIND_MINUTES)
        if moves_known:
            tables.open(MOVES, by_day=True)
            tables.open(BEHIND_MINUTES, by_day=True)
        return _Reader(tables, replication_factor, broker, is_covered=tables.has(COVERAGE)).read(
            last_seconds, retention_seconds, policy if accuracy_known else None, moves_known=moves_known
        )


_MOST_NAMED = 10  # the most brokers named in one sentence

_SPAN = """
    SELECT "window", min(epoch_us(window_start)), max(epoch_us(window_start)) FROM broker_rates GROUP BY "window"
"""

_BROKERS = "SELECT DISTINCT broker_id FROM broker_rates ORDER BY broker_id"

_SIDES = "SELECT broker_id, list(DISTINCT side) FROM broker_rates GROUP BY broker_id"

_THROTTLED_SHARE = """
    SELECT coalesce(sum(bytes) FILTER (throttled) / nullif(sum(bytes), 0), 0) FROM broker_rates
    WHERE "window" = $window AND epoch_us(window_start) >= $since AND broker_id IN (SELECT unnest($brokers))
"""

_BYTES_IN = """
    SELECT broker_id, epoch_us(window_start) AS start_us,
           sum(mean_bytes_per_second * CASE side WHEN 'leader' THEN leader ELSE follower END) AS rate
    FROM broker_rates JOIN (
        SELECT unnest($brokers) AS broker_id, unnest($leader) AS leader, unnest($follower) AS follower
    ) USING (broker_id)
    WHERE "window" = $window AND NOT throttled AND epoch_us(window_start) >= $since
    GROUP BY ALL
"""

_BUSIEST = f"SELECT * FROM ({_BYTES_IN}) ORDER BY rate DESC, start_us, broker_id LIMIT 1"  # noqa: S608 - constants

_BUSIEST_BY_NIGHT = _BUSIEST.replace("ORDER BY", "WHERE hour(make_timestamp(start_us)) NOT BETWEEN 6 AND 21 ORDER BY")

_MEANS = f"SELECT broker_id, count(*), avg(rate) FROM ({_BYTES_IN}) WHERE start_us < $until GROUP BY broker_id"  # noqa: S608

_COVERED = """
    SELECT broker_id, sum(seconds) FROM coverage
    WHERE epoch_us(window_start) >= $since AND epoch_us(window_start) < $until GROUP BY broker_id
"""

# A span in which next to nothing passed (1 byte/s) says that something was broken, and nothing of the quota.
_ACCURACY = """
    SELECT count(*), sum(seconds_left_out), 1 - sum(bytes_left_out / rate_bytes_per_second) / sum(seconds_left_out),
           max(worst_1s_over_quota)
    FROM throttle_accuracy
    WHERE quota_id = side || '.replication.throttled.rate' AND seconds_left_out > 0 AND policy = $policy
          AND rate_bytes_per_second * seconds_left_out - bytes_left_out >= seconds_left_out
          AND epoch_us("end") >= $since AND broker_id IN (SELECT unnest($brokers))
"""


class _Reader:
    """Queries the open tables for one broker, or for all where it is None."""

    def __init__(self, tables: OpenTables, replication_factor: int, broker: int | None, *, is_covered: bool) -> None:
        self._tables = tables
        self._rows = tables.rows
        self._is_covered = is_covered
        self._path = tables.path
        self._spans = {
            window: (first, last + WINDOW_SECONDS[window] * 1_000_000)
            for window, first, last in self._rows(_SPAN)
            if window in WINDOW_SECONDS
        }
        if not self._spans:
            raise TablesError(f"{self._path}/{BROKER_RATES.name} has no rows by {' or '.join(WINDOW_SECONDS)}")
        all_brokers = [broker_id for (broker_id,) in self._rows(_BROKERS)]
        if broker is not None and broker not in all_brokers:
            known = ", ".join(map(str, all_brokers[:_MOST_NAMED]))
            more = f" and {len(all_brokers) - _MOST_NAMED} more" if len(all_brokers) > _MOST_NAMED else ""
            raise TablesError(f"{self._path} has nothing of broker {broker}, only of {known}{more}")
        self._broker_count = len(all_brokers)
        self._brokers = all_brokers if broker is None else [broker]
        sides = dict(self._rows(_SIDES))
        self._weights = [bytes_in_weights(sides[broker_id], replication_factor) for broker_id in self._brokers]
        self._fine = "minute" if "minute" in self._spans else "hour"
        self._coarse = "hour" if "hour" in self._spans else "minute"

    def read(
        self, last_seconds: float, retention_seconds: float | None, policy: str | None, *, moves_known: bool
    ) -> History:
        first, until = self._spans[self._fine]
        since = max(first, until - int(last_seconds * 1_000_000))
        share = self._rows(_THROTTLED_SHARE, window=self._fine, since=since, brokers=self._brokers)
        return History(
            since=_time(since),
            until=_time(until),
            brokers=self._broker_count,
            throttled_share=share[0][0],
            busiest=self._busiest(_BUSIEST, since),
            busiest_by_night=self._busiest(_BUSIEST_BY_NIGHT, since),
            growth=self._growth(),
            accuracy=None if policy is None else self._accuracy(since, policy),
            log_size=None if retention_seconds is None else self._log_size(retention_seconds),
            open_moves=read_open_moves(self._tables, _time(since), _time(until)) if moves_known else None,
        )

    def _busiest(self, query: str, since: int) -> Busiest | None:
        rows = self._bytes_in(query, self._fine, since)
        for broker_id, start_us, rate in rows:
            if rate <= 0:  # its rows tell of throttled replicas, beside which nothing passed
                return None
            return Busiest(broker_id, _time(start_us), self._fine, rate)
        return None

    def _growth(self) -> Growth | None:
        """Return the growth over the longest period that is known; None where none is."""
        for period in GROWTH_PERIODS:
            later, earlier = (self._means(period, before)[0] for before in (0, period))
            ratio = growth_ratio(earlier, later)
            if ratio is not None:
                return Growth(ratio, period)
        return None

    def _log_size(self, retention_seconds: float) -> float:
        """Return the bytes that came into a broker within the retention; TablesError where the tables begin later."""
        means, longest = self._means(retention_seconds)
        if not means:
            raise TablesError(
                f"{self._path} knows {longest / 3600:.4g} of the {retention_seconds / 3600:.4g} h of the retention"
            )
        return sum(means.values()) / len(means) * retention_seconds

    def _means(self, period: float, before: float = 0) -> tuple[dict[int, float], float]:
        """Return each broker's mean bytes in, over `period` seconds that ended `before` seconds before the tables end.

        Only brokers seen for long enough count (`COVERAGE`). Also returns the seconds of the one seen longest.
        """
        seconds = WINDOW_SECONDS[self._coarse]
        until = self._spans[self._coarse][1] - int(before * 1_000_000)
        since = until - int(period * 1_000_000)
        rows = self._bytes_in(_MEANS, self._coarse, since, until=until)
        seen = {broker: windows * seconds for broker, windows, _ in rows}
        if self._is_covered:  # a window may have been sampled in part
            covered = dict(self._rows(_COVERED, since=since, until=until))
            seen = {broker: min(time, covered.get(broker, 0.0)) for broker, time in seen.items()}
        means = {broker: mean for broker, _, mean in rows if seen[broker] >= ENOUGH * period}
        return means, max(seen.values(), default=0)

    def _accuracy(self, since: int, policy: str) -> Accuracy | None:
        ((count, seconds, mean, worst),) = self._rows(_ACCURACY, since=since, brokers=self._brokers, policy=policy)
        return Accuracy(count, seconds, mean, worst) if count else None

    def _bytes_in(self, query: str, window: str, since: int, **more: int) -> list[Any]:
        sides: tuple[SideName, SideName] = ("leader", "follower")
        weights = {side: [of_broker[side] for of_broker in self._weights] for side in sides}
        return self._rows(query, window=window, since=since, brokers=self._brokers, **weights, **more)


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)
