# SPDX-License-Identifier: Apache-2.0
"""Reads from the tables what a page shows, with DuckDB. How much that is depends on `top`, not on the tables' size."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final

from weir.pipeline.open_tables import OpenTables
from weir.pipeline.page.contents import Columns, Contents, Coverage, LimitedClients
from weir.pipeline.page.moments import micros, moment
from weir.pipeline.page.read_limits import limited_clients
from weir.pipeline.page.read_quotas import accuracy
from weir.pipeline.page.read_rates import RatesReader
from weir.pipeline.page.read_spans import SpansReader
from weir.pipeline.page.read_verdict import read_verdict
from weir.pipeline.tables import (
    ABSENCES,
    BEHIND_MINUTES,
    BROKER_RATES,
    BROKER_SAMPLES,
    CLIENT_RATES,
    COVERAGE,
    LIMITS,
    MOVES,
    PARTITION_RATES,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    THROTTLE_MINUTES,
    WINDOW_SECONDS,
)

MOST_COLUMNS: Final = 96

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WIDTHS: Final = (
    *(1, 2, 5, 10, 15, 20, 30),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 7)),
)

_NEW_TABLES: Final = (COVERAGE, THROTTLE_MINUTES, BEHIND_MINUTES, BROKER_SAMPLES, CLIENT_RATES)
"""Tables that were built before they were thought of do not have them."""

_TABLES: Final = (BROKER_RATES, PARTITION_RATES, THROTTLE_ACCURACY, MOVES, REPLICA_LAG, *_NEW_TABLES)

_WINDOWS: Final = """
    SELECT "window", min(epoch_us(window_start)), max(epoch_us(window_start)) FROM broker_rates GROUP BY "window"
"""

LOOK_BACK: Final = timedelta(days=7)
"""For so long the page tells of a broker that did not come back."""

_OPEN_ABSENCES: Final = 'SELECT epoch_us(min(start)) FROM absences WHERE "end" IS NULL AND "date" < CAST($day AS DATE)'

_MISSING: Final = """
    SELECT coalesce(sum(missing), 0), coalesce(sum(quarantined), 0) FROM coverage
    WHERE epoch_us(window_start) >= $since AND epoch_us(window_start) < $until
"""

# When the samples of a range begin and end, and how long they are; nothing where a day in it is without them.
_SAMPLES: Final = """
    SELECT min(epoch_us(start)), max(epoch_us("end")), median(epoch_us("end") - epoch_us(start)) / 1e6
    FROM broker_samples WHERE epoch_us("end") > $since AND epoch_us(start) < $until
    HAVING count(*) > 0 AND NOT EXISTS (
        SELECT 1 FROM broker_rates WHERE "window" = 'minute' AND epoch_us(window_start) >= $since
               AND epoch_us(window_start) < $until AND "date" NOT IN (SELECT DISTINCT "date" FROM broker_samples))
"""

_QUOTAS: Final = 'SELECT epoch_us(min(start)), epoch_us(max("end")) FROM throttle_accuracy'


_LIMITS: Final = 'SELECT epoch_us(min(window_start)), epoch_us(max(window_start)) FROM limits WHERE "window" = $window'


def read_page(path: Path, since: datetime | None, until: datetime | None, top: int, zone: tzinfo = UTC) -> Contents:
    """Read the range from `since` up to but without `until`; where one is None, as far as the tables go.

    Only the first `top` brokers, partitions, quotas and replicas are read. `zone` tells when it is night. Raises
    TablesError.
    """
    with OpenTables(path) as tables:
        first = None if since is None else since.astimezone(UTC).date()
        last = None if until is None else until.astimezone(UTC).date()
        after = last and last + timedelta(days=1)
        if tables.has(ABSENCES):
            tables.open(ABSENCES, first and first - LOOK_BACK, after, by_day=True)
        else:
            tables.open_empty(ABSENCES)
        for table in _TABLES:
            if table in _NEW_TABLES and not tables.has(table):
                tables.open_empty(table)
            else:
                begin = _first_absence(tables, first) if table == BROKER_RATES and first else first
                tables.open(table, begin, after, by_day=True)
        # tables that were built before there were limits have none
        if has_limits := tables.has(LIMITS):
            tables.open(LIMITS, first, after, by_day=True)
        else:
            tables.open_empty(LIMITS)
        windows = {
            window: (moment(start), moment(last_start) + timedelta(seconds=WINDOW_SECONDS[window]))
            for window, start, last_start in tables.rows(_WINDOWS)
            if window in WINDOW_SECONDS
        }
        finest = "hour" if "minute" not in windows and "hour" in windows else "minute"
        data = windows.get(finest)
        # without any replication the tables may still have quotas that were in force, and clients with limits
        others = _quotas_range(tables) or (_limits_range(tables, finest) if has_limits else None)
        asked = since, until
        since, until = _range(data or others, since, until)
        if since is None or until is None:
            return Contents()
        columns = by_window = columns_of(since, until, WINDOW_SECONDS[finest])
        window = "hour" if columns.seconds >= _HOUR and "hour" in windows else finest
        if columns.seconds == _MINUTE and (sampled := _sampled(tables, since, until)):
            since, until = asked[0] or sampled[0], asked[1] or sampled[1]
            columns = columns_of(since, until, min(sampled[2], _MINUTE))
        verdict = read_verdict(tables, since, until, zone, top)
        rates = RatesReader(tables, columns, by_window, window, finest)
        spans = SpansReader(tables, since, until, data)
        return Contents(
            columns,
            rates.brokers(top),
            rates.partitions(top),
            accuracy(tables, since, until, top),
            spans.moves(top),
            spans.slow(top),
            away=spans.away(),
            coverage=_coverage(tables, since, until),
            partition_columns=by_window,
            limited=limited_clients(tables, columns, finest, top) if has_limits else LimitedClients(),
            verdict=verdict,
        )


def _first_absence(tables: OpenTables, first: date) -> date:
    """Return the day before the first absence that was open before day `first`, to see who came back meanwhile."""
    ((start,),) = tables.rows(_OPEN_ABSENCES, day=str(first))
    return first if start is None else max(first - LOOK_BACK, moment(start).date() - timedelta(days=1))


def _sampled(tables: OpenTables, since: datetime, until: datetime) -> tuple[datetime, datetime, float] | None:
    """Return when the samples of a range begin and end, in whole seconds, and how long they are; None without them."""
    second = 1_000_000
    for start, end, seconds in tables.rows(_SAMPLES, since=micros(since), until=micros(until)):
        return moment(start // second * second), moment(-(-end // second) * second), round(seconds, 1)
    return None


def _coverage(tables: OpenTables, since: datetime, until: datetime) -> Coverage:
    days = {f"date={since.date() + timedelta(days=number)}" for number in range((until.date() - since.date()).days + 1)}
    facts = [published for folder, published in tables.facts.items() if folder.name in days]
    ((missing, quarantined),) = tables.rows(_MISSING, since=micros(since), until=micros(until))
    return Coverage(
        tuple(sorted({cluster for of_day in facts for cluster in of_day.get("clusters", ())})),
        max((of_day["made_at"] for of_day in facts if of_day.get("made_at")), default=None),
        max((of_day["until"] for of_day in facts if of_day.get("until")), default=None),
        missing,
        quarantined,
    )


def columns_of(since: datetime, until: datetime, least: float = _MINUTE) -> Columns:
    """Cut a range into at most MOST_COLUMNS columns of a round width, at least `least` seconds wide."""
    longest = _WIDTHS[-1]
    weeks = -(-(until - since) // timedelta(seconds=longest * (MOST_COLUMNS - 1)))
    for seconds in (*(width for width in _WIDTHS if width >= least), longest * weeks):
        first = int(since.timestamp()) // seconds * seconds
        count = -int((first - until.timestamp()) // seconds)
        if count <= MOST_COLUMNS:
            break
    return Columns(since, until, datetime.fromtimestamp(first, UTC), seconds, count)


def _quotas_range(tables: OpenTables) -> tuple[datetime, datetime] | None:
    start, end = tables.rows(_QUOTAS)[0]
    return None if start is None else (moment(start), moment(end))


def _limits_range(tables: OpenTables, window: str) -> tuple[datetime, datetime] | None:
    start, end = tables.rows(_LIMITS, window=window)[0]
    return None if start is None else (moment(start), moment(end) + timedelta(seconds=WINDOW_SECONDS[window]))


def _range(
    data: tuple[datetime, datetime] | None, since: datetime | None, until: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """Return the range, with missing ends taken from the data. Where that leaves nothing, it is a day."""
    day = timedelta(days=1)
    if data is None:
        return since or (until and until - day), until or (since and since + day)
    if since is None:
        since = data[0] if until is None or data[0] < until else until - day
    if until is None:
        until = data[1] if data[1] > since else since + day
    return since, until
