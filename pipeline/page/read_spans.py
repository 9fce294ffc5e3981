# SPDX-License-Identifier: Apache-2.0
"""Reads the tables whose rows are spans of time: moves, replicas out of sync, and brokers that were away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from weir.pipeline.open_tables import OpenTables
from weir.pipeline.page.contents import Away, Move, Moves, SlowReplica, SlowReplicas
from weir.pipeline.page.moments import MINUTE_MICROS, micros, with_times
from weir.pipeline.page.replica import Replica

MOST_MOVES_OF_A_REPLICA: Final = 50

_DAY_MICROS: Final = 86_400 * 1_000_000
_MUCH: Final = 0.75  # of what the leader's side saw: with less, the follower's side saw a part only

# Spans end with the day: one that is open at midnight is continued by the first one of the next day, if that began
# before midnight. Rows of days outside the range give a span its begin and its end, and nothing else. A row that the
# range cuts has the figures of its minutes in the range; `reaches_out` where the tables are too old to have minutes.
#
# Both sides may have seen a replica, so spans that overlap are one group, of which one side is shown. That is the
# follower's, of the replica's own broker whoever leads, unless the leader's saw much more, or saw in fewer spans what
# is no less: a sidecar that was started anew in a move tells of it twice, and not of all.
_SPANS: Final = """
    CREATE VIEW {name} AS
    WITH days AS (
        SELECT *, epoch_us(start) AS start_us, epoch_us("end") AS end_us,
               epoch_us(CAST("date" AS TIMESTAMP)) AS day_us, day_us < {until} AND day_us + {day} > {since} AS is_shown,
               greatest(start_us, day_us, {data_since}) AS from_us,
               least(coalesce(end_us, day_us + {day}), {data_until}) AS until_us,
               is_shown AND (from_us < {since} AND until_us > {since} OR from_us < {until} AND until_us > {until})
                 AS is_cut
        FROM {table}
    ), parts AS (
        SELECT topic, partition, replica, side, broker_id, start, "date", true AS has_minutes, {part_sums}
        FROM (SELECT *, epoch_us(window_start) > {since} - {minute} AND epoch_us(window_start) < {until} AS is_in,
                     epoch_us(stall_end) AS stall_us, least(stall_us, {until}) AS last_us,
                     CASE WHEN stall_us IS NULL THEN 0 ELSE greatest(0, last_us
                       - greatest(stall_us - longest_stall_seconds * 1e6, {since})) / 1e6 END AS stall,
                     CASE WHEN stall_us IS NULL THEN 0 ELSE greatest(0, last_us
                       - greatest(stall_us - stuck_seconds * 1e6, {since})) / 1e6 END AS stuck
              FROM behind_minutes SEMI JOIN (SELECT * FROM days WHERE is_cut)
                USING (topic, partition, replica, side, broker_id, start, "date")
              WHERE "date" IN ({cut_days}))
        GROUP BY ALL
    ), rows AS (
        -- two processes may tell of the same begin: their minutes count once
        SELECT days.* REPLACE ({cut}), is_cut AND has_minutes IS NULL AS reaches_out
        FROM (SELECT *, row_number() OVER (PARTITION BY topic, partition, replica, side, broker_id, start, "date"
                                           ORDER BY end_us NULLS LAST) = 1 AS is_first FROM days) AS days
        LEFT JOIN parts USING (topic, partition, replica, side, broker_id, start, "date")
    ), begun AS (
        SELECT *, CASE WHEN lag(end_us) OVER in_order IS NULL AND lag(day_us) OVER in_order = day_us - {day}
                        AND start_us < day_us THEN 0 ELSE 1 END AS begins
        FROM rows
        WINDOW in_order AS (PARTITION BY topic, partition, replica, side, broker_id ORDER BY day_us, start_us)
    ), numbered AS (
        SELECT *, sum(begins) OVER in_order AS span FROM begun
        WINDOW in_order AS (PARTITION BY topic, partition, replica, side, broker_id ORDER BY day_us, start_us
                            ROWS UNBOUNDED PRECEDING)
    ), spans AS (
        SELECT topic, partition, replica, side, min(start_us) AS start_us, max(end_us) AS end_us,
               max(day_us) + {day} AS day_end_us, bool_or(reaches_out) AS reaches_out, {sums}
        FROM numbered GROUP BY topic, partition, replica, side, broker_id, span
    ), seen AS (
        SELECT *, coalesce(end_us, greatest(start_us, least(day_end_us, {known_until}, lead(start_us) OVER (
                   PARTITION BY topic, partition, replica, side ORDER BY start_us)))) AS seen_us
        FROM spans
    ), grouped AS (
        SELECT *, CASE WHEN start_us < max(seen_us) OVER (
                   PARTITION BY topic, partition, replica ORDER BY start_us, seen_us
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) THEN 0 ELSE 1 END AS first
        FROM seen
    ), told AS (
        SELECT *, sum(first) OVER (PARTITION BY topic, partition, replica ORDER BY start_us, seen_us
                                   RANGE UNBOUNDED PRECEDING) AS told
        FROM grouped
    ), sides AS (
        SELECT topic, partition, replica, told,
               sum({weight}) FILTER (side = 'follower') AS own, count(*) FILTER (side = 'follower') AS own_spans,
               sum({weight}) FILTER (side = 'leader') AS leaders, count(*) FILTER (side = 'leader') AS leader_spans,
               {of_both}
        FROM told GROUP BY ALL
    )
    SELECT told.* REPLACE ({replaced}) FROM told JOIN sides USING (topic, partition, replica, told)
    WHERE side = CASE WHEN own_spans = 0 THEN 'leader' WHEN leader_spans = 0 THEN 'follower'
                      WHEN own < {much} * leaders OR (leaders >= own AND leader_spans < own_spans) THEN 'leader'
                      ELSE 'follower' END
          AND start_us < {until} AND seen_us > {since}
"""

_MOVE_SUMS: Final = """
    coalesce(sum(bytes) FILTER (is_shown), 0) AS size,
    coalesce(sum(bytes_throttled) FILTER (is_shown), 0) AS throttled_size,
    sum(bytes) FILTER (is_shown) / nullif(sum(coalesce(bytes / nullif(mean_bytes_per_second, 0), {idle_seconds}))
                                          FILTER (is_shown), 0) AS rate,
    arg_max(quota_bytes_per_second, day_us) FILTER (is_shown) AS quota,
    max(longest_stall_seconds) FILTER (is_shown) AS longest_stall
"""

# A row without bytes does not have its own seconds: they are those of its day from the span's begin on.
_IDLE_SECONDS: Final = """
    greatest(0, least(coalesce(end_us, day_us + {day}), {known_until}) - greatest(start_us, day_us, {since})) / 1e6
"""

# What a row that is cut has in the range, from its minutes. One without minutes keeps what it has.
_MOVE_PART_SUMS: Final = """
    coalesce(sum(bytes) FILTER (is_in), 0) AS size_in,
    coalesce(sum(bytes_throttled) FILTER (is_in), 0) AS throttled_in,
    coalesce(max(stall), 0) AS stall_in
"""
_MOVE_CUT: Final = """
    CASE WHEN has_minutes IS NULL THEN bytes WHEN is_first THEN size_in ELSE 0 END AS bytes,
    CASE WHEN has_minutes IS NULL THEN bytes_throttled WHEN is_first THEN throttled_in ELSE 0 END AS bytes_throttled,
    CASE WHEN has_minutes IS NULL THEN mean_bytes_per_second
         WHEN is_first THEN size_in / nullif({idle_seconds}, 0) END AS mean_bytes_per_second,
    CASE WHEN has_minutes IS NULL THEN longest_stall_seconds ELSE stall_in END AS longest_stall_seconds
"""
_LAG_PART_SUMS: Final = """
    coalesce(max(max_lag_messages) FILTER (is_in), 0) AS lag_in,
    count(*) FILTER (stuck > 0) AS spans_in,
    coalesce(sum(stuck), 0) AS stuck_in
"""
_LAG_CUT: Final = """
    CASE WHEN has_minutes IS NULL THEN max_lag_messages ELSE lag_in END AS max_lag_messages,
    CASE WHEN has_minutes IS NULL THEN stuck_spans WHEN is_first THEN spans_in ELSE 0 END AS stuck_spans,
    CASE WHEN has_minutes IS NULL THEN stuck_seconds WHEN is_first THEN stuck_in ELSE 0 END AS stuck_seconds
"""

_LAG_SUMS: Final = """
    max(max_lag_messages) FILTER (is_shown) AS max_lag_messages,
    coalesce(sum(stuck_spans) FILTER (is_shown), 0) AS stuck_spans,
    coalesce(sum(stuck_seconds) FILTER (is_shown), 0) AS stuck_seconds
"""

_MOVE_TOTALS: Final = """
    SELECT count(DISTINCT (topic, partition, replica)), count(*), count(*) FILTER (end_us IS NULL),
           count(*) FILTER (reaches_out)
    FROM move_spans
"""

_MOVES: Final = """
    WITH largest AS (
        SELECT topic, partition, replica FROM move_spans
        GROUP BY ALL ORDER BY sum(size) DESC, topic, partition, replica LIMIT $top
    )
    SELECT topic, partition, replica, start_us, end_us, seen_us, size, throttled_size, rate, quota, longest_stall
    FROM move_spans SEMI JOIN largest USING (topic, partition, replica)
    QUALIFY row_number() OVER (PARTITION BY topic, partition, replica ORDER BY size DESC, start_us) <= $most
    ORDER BY min(start_us) OVER (PARTITION BY topic, partition, replica), topic, partition, replica, start_us
"""

_LAG_TOTALS: Final = """
    SELECT count(*), coalesce(max(stuck_seconds), 0), count(*) FILTER (reaches_out) FROM lag_spans
"""

_LAG: Final = """
    SELECT topic, partition, replica, start_us, end_us, seen_us, max_lag_messages, stuck_spans, stuck_seconds
    FROM lag_spans ORDER BY seen_us - start_us DESC, topic, partition, replica, start_us LIMIT $top
"""

# A process tells of an absence by itself, and a day too. It forgets the follower after an hour, and when it ends:
# an absence without an end goes on until the broker's own sidecar tells of bytes, or another leader's of its return.
# On later days that is only told of brokers with a sidecar: others may fetch again from a leader that has none.
_ABSENCES: Final = """
    CREATE VIEW away AS
    WITH seen AS (
        SELECT replica, broker_id, epoch_us(start) // {second} AS second, min(epoch_us(start)) AS start_us,
               max(epoch_us("end")) AS end_us, max(epoch_us(seen_until)) AS seen_us
        FROM absences GROUP BY ALL
    )
    SELECT replica, start_us, end_us, seen_us FROM seen
    WHERE start_us < {until} AND (seen_us > {since} OR end_us IS NULL AND NOT EXISTS (
        SELECT 1 FROM broker_rates AS rates
        WHERE rates.broker_id = seen.replica AND side = 'follower' AND mean_bytes_per_second > 0
              AND epoch_us(window_start) >= seen.seen_us AND epoch_us(window_start) < {since}
    ) AND (seen_us >= {since} // {day} * {day} OR EXISTS (
        SELECT 1 FROM broker_rates AS rates
        WHERE rates.broker_id = seen.replica AND side = 'follower' AND mean_bytes_per_second > 0
    )) AND NOT EXISTS (
        SELECT 1 FROM seen AS other
        WHERE other.replica = seen.replica AND other.end_us >= seen.seen_us AND other.end_us <= {since}
    ))
    QUALIFY row_number() OVER (PARTITION BY replica, start_us // {hour} ORDER BY seen_us - start_us DESC) = 1
"""

_AWAY: Final = "SELECT replica, start_us, end_us, seen_us FROM away ORDER BY seen_us - start_us DESC, replica LIMIT 100"


class SpansReader:
    """Queries the open tables for spans from `since` up to but without `until`; `data` is when they have rates."""

    def __init__(
        self, tables: OpenTables, since: datetime, until: datetime, data: tuple[datetime, datetime] | None
    ) -> None:
        self._rows = tables.rows
        limits = {"since": micros(since), "until": micros(until), "minute": MINUTE_MICROS}
        first, last = data or (since, until)
        cut_days = {since.astimezone(UTC).date(), (until - timedelta(microseconds=1)).astimezone(UTC).date()}
        days = {"day": _DAY_MICROS, "known_until": micros(min(until, last))}
        days |= {"data_since": micros(first), "data_until": micros(last)}
        values = {**limits, **days, "cut_days": ", ".join(f"DATE '{day}'" for day in sorted(cut_days))}
        values["idle_seconds"] = _IDLE_SECONDS.format(**values)
        # either side's quota may have held a move
        moves = {"name": "move_spans", "table": "moves", "sums": _MOVE_SUMS, "weight": "size"}
        moves |= {"of_both": "max(quota) AS other_quota", "replaced": "coalesce(quota, other_quota) AS quota"}
        moves |= {"part_sums": _MOVE_PART_SUMS, "cut": _MOVE_CUT}
        lags = {"name": "lag_spans", "table": "replica_lag", "sums": _LAG_SUMS, "weight": "seen_us - start_us"}
        lags |= {"of_both": "0 AS nothing", "replaced": "side AS side"}
        lags |= {"part_sums": _LAG_PART_SUMS, "cut": _LAG_CUT}
        for parts in (moves, lags):
            filled = {name: part.format(**values) for name, part in parts.items()}
            self._rows(_SPANS.format(**filled, **values, much=_MUCH))
        self._rows(_ABSENCES.format(second=1_000_000, hour=3_600_000_000, day=_DAY_MICROS, **limits))

    def moves(self, top: int) -> Moves:
        """Return the moves of the `top` replicas with the most bytes."""
        rows = self._rows(_MOVES, top=top, most=MOST_MOVES_OF_A_REPLICA)
        shown = tuple(Move(Replica(*row[:3]), *with_times(row[3:], 0, 1, 2)) for row in rows)
        replicas, count, unfinished, reaching_out = self._rows(_MOVE_TOTALS)[0]
        return Moves(replicas, count, unfinished, shown, reaching_out)

    def away(self) -> tuple[Away, ...]:
        """Return the brokers that were away, each as the sidecar saw it that missed it for longest."""
        return tuple(Away(*with_times(row, 1, 2, 3)) for row in self._rows(_AWAY))

    def slow(self, top: int) -> SlowReplicas:
        """Return the `top` longest spans in which a replica was out of sync."""
        rows = self._rows(_LAG, top=top)
        shown = tuple(SlowReplica(Replica(*row[:3]), *with_times(row[3:], 0, 1, 2)) for row in rows)
        count, most_stuck_seconds, reaching_out = self._rows(_LAG_TOTALS)[0]
        return SlowReplicas(count, most_stuck_seconds, shown, reaching_out)
