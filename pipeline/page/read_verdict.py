# SPDX-License-Identifier: Apache-2.0
"""Reads from the tables the figures of the five answers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

from weir.pipeline.open_tables import OpenTables
from weir.pipeline.page.moments import MINUTE_MICROS, micros, moment
from weir.pipeline.page.replica import Replica
from weir.pipeline.page.verdict import NIGHT, Bound, ClientRates, Ends, Impact, MoveCost, OpenMove, Room, Verdict

PACES: Final = (10, 30, 60)
"""The minutes over which a pace is taken; the middle one gives the time at which a move ends."""

FRESH_MINUTES: Final = 10
"""An open move that no minute tells of for longer, up to the last sample, is out of sight."""

MOST_OPEN: Final = 1000
MOST_HURT: Final = 5

_REPLICA: Final = "topic, partition, replica"

# The spans of a table in the range, in whole minutes. One without an end reaches to the last minute that tells of it.
_SPANS: Final = """
    CREATE TABLE {name} AS
    WITH told AS (
        SELECT {replica}, side, broker_id, start, "date", max(epoch_us(window_start)) + {minute} AS told_us
        FROM behind_minutes GROUP BY ALL
    ), spans AS (
        SELECT {table}.*, epoch_us(start) AS start_us, epoch_us("end") AS end_us,
               greatest(start_us, coalesce(end_us, told_us, start_us)) AS until_us
        FROM {table} LEFT JOIN told USING ({replica}, side, broker_id, start, "date") WHERE {condition}
    )
    SELECT * EXCLUDE (start, "end"), greatest(start_us, {since}) // {minute} AS from_minute,
           greatest(from_minute + 1, (least(until_us, {until}) + {minute} - 1) // {minute}) AS until_minute
    FROM spans WHERE start_us < {until} AND until_us >= {since}
"""

# A sum over time that is known at each minute in which its slope changes: {rows} are spans of a key with a weight.
_STEPS: Final = """
    CREATE TABLE {name} AS
    WITH changes AS (
        SELECT key, minute, sum(change) AS change FROM (
            SELECT key, from_minute AS minute, weight AS change FROM {rows}
            UNION ALL SELECT key, until_minute, -weight FROM {rows}
        ) GROUP BY ALL
    ), slopes AS (
        SELECT key, minute, sum(change) OVER in_order AS slope, lag(minute) OVER in_order AS before FROM changes
        WINDOW in_order AS (PARTITION BY key ORDER BY minute)
    ), steps AS (
        SELECT *, coalesce(lag(slope) OVER in_order * (minute - before), 0) AS step FROM slopes
        WINDOW in_order AS (PARTITION BY key ORDER BY minute)
    )
    SELECT key, minute, slope, sum(step) OVER (PARTITION BY key ORDER BY minute) AS total FROM steps
"""

# Spans of each replica and key as one where they overlap or touch: both sides may tell of a replica.
_MERGED: Final = """
    SELECT {replica}, key, min(from_minute) AS from_minute, max(until_minute) AS until_minute FROM (
        SELECT *, sum(begins) OVER (PARTITION BY {replica}, key ORDER BY from_minute, until_minute) AS number
        FROM (SELECT *, CASE WHEN from_minute <= max(until_minute) OVER (
                          PARTITION BY {replica}, key ORDER BY from_minute, until_minute
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) THEN 0 ELSE 1 END AS begins
              FROM {rows})
    ) GROUP BY {replica}, key, number
"""

# What such a sum grew by in the merged spans of each replica, for the key where that is most.
_GROWTH: Final = """
    SELECT {replica}, max(of_key) AS grown FROM (
        SELECT {replica}, merged.key AS key,
               sum(coalesce(ends.total + ends.slope * (until_minute - ends.minute), 0)
                   - coalesce(begins.total + begins.slope * (from_minute - begins.minute), 0)) AS of_key
        FROM ({merged}) AS merged
        ASOF LEFT JOIN {steps} AS begins ON merged.key = begins.key AND from_minute >= begins.minute
        ASOF LEFT JOIN {steps} AS ends ON merged.key = ends.key AND until_minute >= ends.minute
        GROUP BY ALL
    ) GROUP BY ALL
"""

# Each span for each broker that it is of: the replica's own, and the one whose sidecar told of it.
_OF_BROKERS: Final = """
    (SELECT DISTINCT {replica}, unnest([replica, broker_id]) AS key, from_minute, until_minute FROM {spans})
"""
_OF_SIDES: Final = "(SELECT *, broker_id * 2 + CAST(side = 'leader' AS INTEGER) AS key FROM mover_spans)"

_MOVING: Final = """
    (SELECT DISTINCT broker_id AS key, epoch_us(window_start) // {minute} AS from_minute,
            from_minute + 1 AS until_minute, 1 AS weight
     FROM broker_rates WHERE "window" = 'minute' AND throttled AND bytes > 0 AND {in_range})
"""

# Which replicas were out of sync, and why: they moved, their broker was away, or others moved meanwhile.
_OUT_OF_SYNC: Final = """
    CREATE TABLE out_of_sync AS
    WITH replicas AS (SELECT DISTINCT {replica} FROM slow_spans),
    movers AS (SELECT DISTINCT {replica} FROM mover_spans),
    gone AS (
        SELECT DISTINCT topic, partition, slow_spans.replica AS replica FROM slow_spans JOIN absences
          ON absences.replica = slow_spans.replica AND epoch_us(absences.start) < until_us
             AND epoch_us(coalesce(absences."end", seen_until)) > start_us
    ),
    meanwhile AS ({meanwhile})
    SELECT {replica}, coalesce(grown, 0) AS minutes,
           CASE WHEN ({replica}) IN (FROM movers) THEN 'mover' WHEN ({replica}) IN (FROM gone) THEN 'away'
                WHEN grown > 0 THEN 'hurt' ELSE 'other' END AS why
    FROM replicas LEFT JOIN meanwhile USING ({replica})
"""

_HURT: Final = """
    (SELECT DISTINCT {replica}, unnest([replica, broker_id]) AS key, from_minute, until_minute
     FROM slow_spans SEMI JOIN (SELECT * FROM out_of_sync WHERE why = 'hurt') USING ({replica}))
"""

# By broker, side and minute: the time with throttled replicas, and that in which a quota held some back. Of several
# quotas each tells of the same samples.
_QUOTA_MINUTES: Final = """
    CREATE TABLE quota_minutes AS
    SELECT broker_id, side, from_minute, max(held) AS held, max(moving) AS moving FROM (
        SELECT broker_id, side, quota_id, epoch_us(window_start) // {minute} AS from_minute,
               CAST(round(sum(seconds_left_out) * 1000) AS BIGINT) AS held,
               CASE WHEN sum(bytes) > 0 OR held > 0 THEN CAST(round(sum(seconds) * 1000) AS BIGINT) ELSE 0 END AS moving
        FROM throttle_minutes WHERE {in_range} GROUP BY ALL
    ) GROUP BY ALL
"""

_HELD: Final = """
    (SELECT broker_id * 2 + CAST(side = 'leader' AS INTEGER) AS key, from_minute, from_minute + 1 AS until_minute,
            held AS weight FROM quota_minutes)
"""

_COSTS: Final = """
    WITH movers AS (
        SELECT {replica}, max(of_side) AS size, max(stall) AS stall FROM (
            SELECT {replica}, side, sum(bytes) AS of_side, max(longest_stall_seconds) AS stall
            FROM mover_spans GROUP BY ALL
        ) GROUP BY ALL
    ), hurt AS ({hurt}), held AS ({held}),
    all_costs AS (
        SELECT {replica}, size, coalesce(hurt.grown, 0) AS hurt_minutes, coalesce(held.grown, 0) AS held_millis, stall
        FROM movers LEFT JOIN hurt USING ({replica}) LEFT JOIN held USING ({replica})
    )
    SELECT * FROM all_costs
    QUALIFY row_number() OVER (ORDER BY hurt_minutes DESC, size DESC, {replica}) <= $top
            OR row_number() OVER (ORDER BY size DESC, {replica}) <= $top
    ORDER BY hurt_minutes DESC, size DESC, {replica}
"""

_OPEN: Final = """
    CREATE TABLE open_moves AS
    WITH newest AS (
        SELECT {replica}, arg_max(end_us IS NULL, (until_us, end_us IS NULL)) AS is_open, max(until_us) AS until_us
        FROM mover_spans GROUP BY ALL
    )
    SELECT *, is_open AND until_us > {fresh_since} AS is_seen FROM newest
"""

_ENDS: Final = """
    SELECT count(*), count(*) FILTER (is_open AND NOT is_seen), max(until_us) FILTER (NOT is_open) FROM open_moves
"""

# The messages behind in each minute of an open move, and by how much they fell in the minutes before the last one.
_PACES: Final = """
    WITH told AS (
        SELECT {replica}, epoch_us(window_start) // {minute} AS minute, max(max_lag_messages) AS behind
        FROM behind_minutes SEMI JOIN (SELECT * FROM open_moves WHERE is_seen) USING ({replica})
        WHERE max_lag_messages IS NOT NULL AND {in_range} GROUP BY ALL
    ), placed AS (SELECT *, max(minute) OVER (PARTITION BY {replica}) - minute AS age FROM told)
    SELECT {replica}, max(minute) * {minute}, arg_max(behind, minute), {paces}
    FROM placed GROUP BY {replica} ORDER BY {replica} LIMIT $most
"""
_PACE: Final = """
    (max_by(behind, age) FILTER (age <= {minutes}) - min_by(behind, age))
    / nullif(max(age) FILTER (age <= {minutes}), 0)
"""

_OTHERS: Final = """
    WITH minutes AS (
        SELECT window_start, side, coalesce(sum(mean_bytes_per_second) FILTER (NOT throttled), 0) AS rate,
               coalesce(sum(bytes) FILTER (throttled), 0) AS size
        FROM broker_rates WHERE "window" = 'minute' AND {in_range} GROUP BY ALL
    ), moving AS (SELECT window_start, bool_or(size > 0) AS is_moving FROM minutes GROUP BY ALL),
    sides AS (SELECT side, sum(rate) AS rate, sum(size) AS size FROM minutes GROUP BY ALL)
    SELECT avg(rate) FILTER (is_moving), avg(rate) FILTER (NOT is_moving), (SELECT max(size) FROM sides),
           (SELECT max(epoch_us(window_start)) + {minute} FROM minutes)
    FROM minutes JOIN moving USING (window_start)
    WHERE side = (SELECT side FROM sides ORDER BY rate DESC, side LIMIT 1)
"""

_CLIENTS: Final = """
    SELECT count(DISTINCT client_id), coalesce(sum(throttled_ratio), 0) * 60 FROM limits
    WHERE "window" = 'minute' AND {in_range}
"""

# In a minute that was sampled and tells of no client, none moved a record.
_RECORDS: Final = """
    WITH minutes AS (
        SELECT window_start, bool_or(throttled AND bytes > 0) AS is_moving FROM broker_rates
        WHERE "window" = 'minute' AND {in_range} GROUP BY ALL
    ), told AS (
        SELECT window_start, sum(mean_records_per_second) AS rate FROM limits
        WHERE "window" = 'minute' AND {in_range} GROUP BY ALL
    )
    SELECT avg(coalesce(rate, 0)) FILTER (is_moving), avg(coalesce(rate, 0)) FILTER (NOT is_moving)
    FROM minutes LEFT JOIN told USING (window_start)
"""

# Of brokers with throttled bytes: what clients got and sent in minutes with them, and in those without, up to an hour
# before. That hour may begin before the range.
_OF_CLIENTS: Final = """
    WITH moving AS (
        SELECT DISTINCT broker_id, epoch_us(window_start) // {minute} AS minute FROM broker_rates
        WHERE "window" = 'minute' AND throttled AND bytes > 0 AND {in_range_or_before}
    ), told AS (
        SELECT broker_id, epoch_us(window_start) // {minute} AS minute, seconds, bytes_in, bytes_out
        FROM client_rates WHERE seconds > 0 AND {in_range_or_before}
    ), sums AS (
        SELECT told.broker_id AS broker_id, moving.minute = told.minute AS is_moving,
               sum(bytes_out) / sum(seconds) AS read, sum(bytes_in) / sum(seconds) AS written
        FROM told ASOF JOIN moving ON told.broker_id = moving.broker_id AND told.minute <= moving.minute
        WHERE moving.minute - told.minute <= 60 AND moving.minute * {minute} > {since} - {minute}
        GROUP BY ALL
    )
    SELECT broker_id, during.read, during.written, before.read, before.written
    FROM (SELECT * FROM sums WHERE is_moving) AS during
    LEFT JOIN (SELECT * FROM sums WHERE NOT is_moving) AS before USING (broker_id)
    ORDER BY coalesce(before.read + before.written - during.read - during.written, '-inf') DESC, broker_id
"""

_WHY: Final = "SELECT why, count(*) FROM out_of_sync GROUP BY why"
_WORST_HURT: Final = """
    SELECT {replica}, minutes FROM out_of_sync WHERE why = 'hurt' ORDER BY minutes DESC, {replica} LIMIT $most
"""

_BOUND: Final = """
    SELECT broker_id, side, sum(held) / 1000, sum(moving) / 1000 FROM quota_minutes
    GROUP BY ALL HAVING sum(moving) > 0 ORDER BY 3 DESC, 4, broker_id, side
"""

_RATES: Final = """
    SELECT min(rate_bytes_per_second), max(rate_bytes_per_second) FROM throttle_accuracy
    WHERE epoch_us("end") > {since} AND epoch_us(start) < {until} AND least(epoch_us("end"), {until}) >= (
        SELECT max(least(epoch_us("end"), {until})) - {minute} FROM throttle_accuracy
        WHERE epoch_us("end") > {since} AND epoch_us(start) < {until})
"""

_HELD_BY_HOUR: Final = "SELECT from_minute // 60, sum(held), sum(moving) FROM quota_minutes GROUP BY ALL"
_HELD_SINCE: Final = "SELECT sum(held), sum(moving) FROM quota_minutes WHERE from_minute >= $minute"

_BUSIEST_BY_HOUR: Final = """
    SELECT minute // 60, max(others), max(everything) FROM (
        SELECT broker_id, side, epoch_us(window_start) // {minute} AS minute, sum(mean_bytes_per_second) AS everything,
               coalesce(sum(mean_bytes_per_second) FILTER (NOT throttled), 0) AS others
        FROM broker_rates WHERE "window" = 'minute' AND {in_range} GROUP BY ALL
    ) GROUP BY ALL
"""


def read_verdict(tables: OpenTables, since: datetime, until: datetime, zone: tzinfo, top: int) -> Verdict:
    """Read the range from `since` up to but without `until`; nights are those of `zone`.

    The costs are those of the `top` moves that hurt most, and of the `top` with the most bytes.
    """
    return _Reader(tables, since, until).read(zone, top)


def read_open_moves(tables: OpenTables, since: datetime, until: datetime) -> tuple[OpenMove, ...]:
    """Read the moves that are open at the end of the range: how far behind they are, and when they end."""
    reader = _Reader(tables, since, until)
    reader.read_spans()
    return reader.ends(micros(until)).open


class _Reader:
    def __init__(self, tables: OpenTables, since: datetime, until: datetime) -> None:
        self._tables = tables
        limits = {"since": micros(since), "until": micros(until), "minute": MINUTE_MICROS}
        in_range = "epoch_us(window_start) > {since} - {minute} AND epoch_us(window_start) < {until}"
        before = in_range.format(**limits | {"since": limits["since"] - 60 * MINUTE_MICROS})
        in_range = in_range.format(**limits)
        self._values: dict[str, object] = {
            **limits,
            "replica": _REPLICA,
            "in_range": in_range,
            "in_range_or_before": before,
        }

    def _filled(self, query: str, **more: object) -> str:
        return query.format(**self._values, **more)

    def _rows(self, query: str, filled: dict[str, object] | None = None, **values: object) -> list[Any]:
        return self._tables.rows(self._filled(query, **(filled or {})), **values)

    def read_spans(self) -> None:
        throttled = {"name": "mover_spans", "table": "moves", "condition": "bytes_throttled > 0"}
        self._rows(_SPANS, {**throttled})

    def read(self, zone: tzinfo, top: int) -> Verdict:
        self.read_spans()
        self._rows(_SPANS, {"name": "slow_spans", "table": "replica_lag", "condition": "true"})
        self._rows(_STEPS, {"name": "moving", "rows": self._filled(_MOVING)})
        meanwhile = self._growth(self._filled(_OF_BROKERS, spans="slow_spans"), "moving")
        self._rows(_OUT_OF_SYNC, {"meanwhile": meanwhile})
        self._rows(_QUOTA_MINUTES)
        ((during, apart, size, until),) = self._rows(_OTHERS)
        sampled_until = None if until is None else moment(until)
        return Verdict(
            sampled_until,
            self._impact(size or 0, during, apart),
            self._costs(top),
            self.ends(until or 0),
            tuple(Bound(*row) for row in self._rows(_BOUND)),
            self._room(zone, until or 0),
        )

    def _growth(self, rows: str, steps: str) -> str:
        return self._filled(_GROWTH, merged=self._merged(rows), steps=steps)

    def _merged(self, rows: str) -> str:
        return self._filled(_MERGED, rows=self._filled(rows))

    def _impact(self, size: int, during: float | None, apart: float | None) -> Impact:
        why = dict(self._rows(_WHY))
        ((clients, waited),), ((records_during, records_apart),) = self._rows(_CLIENTS), self._rows(_RECORDS)
        worst = tuple((Replica(*row[:3]), row[3] * 60.0) for row in self._rows(_WORST_HURT, most=MOST_HURT))
        movers, hurt, away, others = (why.get(name, 0) for name in ("mover", "hurt", "away", "other"))
        of_clients = tuple(ClientRates(*row) for row in self._rows(_OF_CLIENTS))
        limited = (clients, waited, records_during, records_apart)
        return Impact(size, movers, hurt, away, others, worst, during, apart, *limited, of_clients)

    def _costs(self, top: int) -> tuple[MoveCost, ...]:
        self._rows("CREATE VIEW hurt_spans AS SELECT *, 1 AS weight FROM ({hurt})", {"hurt": self._merged(_HURT)})
        self._rows(_STEPS, {"name": "hurting", "rows": "hurt_spans"})
        self._rows(_STEPS, {"name": "holding", "rows": _HELD})
        hurt = self._growth(self._filled(_OF_BROKERS, spans="mover_spans"), "hurting")
        held = self._growth(_OF_SIDES, "holding")
        rows = self._rows(_COSTS, {"hurt": hurt, "held": held}, top=top)
        return tuple(
            MoveCost(Replica(*row[:3]), int(size), int(minutes), held / 1000, stall)
            for *row, size, minutes, held, stall in rows
        )

    def ends(self, until: int) -> Ends:
        self._rows(_OPEN, {"fresh_since": until - FRESH_MINUTES * MINUTE_MICROS})
        ((count, unseen, last_end),) = self._rows(_ENDS)
        paces = ", ".join(_PACE.format(minutes=minutes) for minutes in PACES)
        rows = self._rows(_PACES, {"paces": paces}, most=MOST_OPEN)
        found = [_open_move(Replica(*row[:3]), moment(row[3]), row[4], row[5:]) for row in rows]
        known = {move.replica for move in found}
        silent = self._rows("SELECT {replica}, until_us FROM open_moves WHERE is_seen ORDER BY {replica}")
        for *row, seen in silent:  # of these no minute tells how far behind they are
            if (replica := Replica(*row)) not in known and len(found) < MOST_OPEN:
                found.append(OpenMove(replica, moment(seen), 0, None, None, None))
        found.sort(key=lambda move: (move.end is not None, -(move.end or move.seen_at).timestamp()))
        return Ends(count, tuple(found), unseen, None if last_end is None else moment(last_end))

    def _room(self, zone: tzinfo, until: int) -> Room:
        ((least, most),) = self._rows(_RATES)
        held = self._rows(_HELD_BY_HOUR)
        busiest = self._rows(_BUSIEST_BY_HOUR)
        last_hour = self._rows(_HELD_SINCE, minute=until // MINUTE_MICROS - 60)

        def by_night(rows: Iterable[Any]) -> list[Any]:
            return [row for row in rows if (moment(0) + timedelta(hours=row[0])).astimezone(zone).hour in NIGHT]

        return Room(
            None if least is None else (least, most),
            _share(row[1:] for row in held),
            _share(row[1:] for row in by_night(held)),
            _share(last_hour),
            max((row[1] for row in busiest), default=None),
            max((row[1] for row in by_night(busiest)), default=None),
            max((row[2] for row in busiest), default=None),
        )


def _open_move(replica: Replica, seen_at: datetime, behind: int, paces: Iterable[float | None]) -> OpenMove:
    """Return when a move ends by its paces, in messages a minute over each of PACES."""
    ends = [_end(seen_at, behind, pace) for pace in paces if pace is not None]
    if not ends:
        return OpenMove(replica, seen_at, behind, None, None, None)
    known = [end for end in ends if end is not None]
    latest = max(known) if len(known) == len(ends) else None
    return OpenMove(replica, seen_at, behind, ends[len(PACES) // 2], min(known, default=None), latest)


def _end(seen_at: datetime, behind: int, pace: float) -> datetime | None:
    try:
        return seen_at + timedelta(minutes=behind / pace) if pace > 0 else None
    except OverflowError:  # it comes closer by next to nothing
        return None


def _share(rows: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Return the part of the time in which a quota held something back, from rows of both."""
    pairs = [(held or 0, moving or 0) for held, moving in rows]
    moving = sum(of for _, of in pairs)
    return sum(of for of, _ in pairs) / moving if moving else None
