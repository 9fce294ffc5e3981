"""Reads the tables whose rows are spans of time: how quotas were kept, moves, and replicas out of sync."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from pipeline.open_tables import OpenTables
from pipeline.page.contents import (
    Accuracy,
    Away,
    Move,
    Moves,
    QuotaAccuracy,
    Replica,
    SlowReplica,
    SlowReplicas,
)
from pipeline.page.moments import micros, moment

MOST_MOVES_OF_A_REPLICA: Final = 50

_DAY_MICROS: Final = 86_400 * 1_000_000
_MUCH: Final = 0.75  # of what the leader's side saw: with less, the follower's side saw a part only

# Spans end with the day: one that is open at midnight is continued by the first one of the next day, if that began
# before midnight. Rows of days outside the range give a span its begin and its end, and nothing else.
#
# Both sides may have seen a replica, so spans that overlap are one group, of which one side is shown. That is the
# follower's, of the replica's own broker whoever leads, unless the leader's saw much more, or saw in fewer spans what
# is no less: a sidecar that was started anew in a move tells of it twice, and not of all.
_SPANS: Final = """
    CREATE VIEW {name} AS
    WITH rows AS (
        SELECT *, epoch_us(start) AS start_us, epoch_us("end") AS end_us,
               epoch_us(CAST("date" AS TIMESTAMP)) AS day_us, day_us < {until} AND day_us + {day} > {since} AS is_shown
        FROM {table}
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
               max(day_us) + {day} AS day_end_us, {sums}
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
                                   ROWS UNBOUNDED PRECEDING) AS told
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
    greatest(0, least(coalesce(end_us, day_us + {day}), {known_until}) - greatest(start_us, day_us)) / 1e6
"""

_LAG_SUMS: Final = """
    max(max_lag_messages) FILTER (is_shown) AS max_lag_messages,
    coalesce(sum(stuck_spans) FILTER (is_shown), 0) AS stuck_spans,
    coalesce(sum(stuck_seconds) FILTER (is_shown), 0) AS stuck_seconds
"""

_MOVE_TOTALS: Final = """
    SELECT count(DISTINCT (topic, partition, replica)), count(*), count(*) FILTER (end_us IS NULL) FROM move_spans
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

_LAG_TOTALS: Final = "SELECT count(*), coalesce(sum(stuck_seconds), 0) FROM lag_spans"

_LAG: Final = """
    SELECT topic, partition, replica, start_us, end_us, seen_us, max_lag_messages, stuck_spans, stuck_seconds
    FROM lag_spans ORDER BY seen_us - start_us DESC, topic, partition, replica, start_us LIMIT $top
"""

_QUOTAS: Final = """
    CREATE VIEW quotas AS
    SELECT broker_id, side, quota_id, rate_bytes_per_second AS rate, policy, count(*) AS spans,
           min(epoch_us(start)) AS start_us, max(epoch_us("end")) AS end_us, sum(seconds) AS seconds,
           sum(mean_over_quota * seconds) / nullif(sum(seconds) FILTER (mean_over_quota IS NOT NULL), 0) AS mean,
           max(worst_1s_over_quota) AS worst_1s, max(worst_10s_over_quota) AS worst_10s,
           sum(seconds_over) AS seconds_over, sum(bytes_left_out) AS bytes_left_out
    FROM throttle_accuracy WHERE epoch_us(start) < {until} AND epoch_us("end") > {since}
    GROUP BY ALL
"""

# A process tells of an absence by itself, and a day too. It forgets the follower after an hour, and when it ends:
# an absence without an end goes on until the broker's own sidecar tells of bytes, or another leader's of its return.
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
    ) AND NOT EXISTS (
        SELECT 1 FROM seen AS other
        WHERE other.replica = seen.replica AND other.end_us >= seen.seen_us AND other.end_us <= {since}
    ))
    QUALIFY row_number() OVER (PARTITION BY replica, start_us // {hour} ORDER BY seen_us - start_us DESC) = 1
"""

_AWAY: Final = "SELECT replica, start_us, end_us, seen_us FROM away ORDER BY seen_us - start_us DESC, replica LIMIT 100"

_ACCURACY_TOTALS: Final = "SELECT count(*), max(worst_1s) FROM quotas"

_ACCURACY: Final = """
    SELECT broker_id, side, quota_id, rate, policy, spans, start_us, end_us, seconds, mean, worst_1s, worst_10s,
           seconds_over, bytes_left_out
    FROM quotas ORDER BY worst_1s DESC NULLS LAST, broker_id, side, quota_id, rate, policy LIMIT $top
"""


class SpansReader:
    """Queries the open tables for spans from `since` up to but without `until`; samples end at `known_until`."""

    def __init__(self, tables: OpenTables, since: datetime, until: datetime, known_until: datetime) -> None:
        self._rows = tables.rows
        limits = {"since": micros(since), "until": micros(until)}
        days = {"day": _DAY_MICROS, "known_until": micros(known_until)}
        idle_seconds = _IDLE_SECONDS.format(**days)
        # either side's quota may have held a move
        moves = {"name": "move_spans", "table": "moves", "sums": _MOVE_SUMS, "weight": "size"}
        moves |= {"of_both": "max(quota) AS other_quota", "replaced": "coalesce(quota, other_quota) AS quota"}
        lags = {"name": "lag_spans", "table": "replica_lag", "sums": _LAG_SUMS, "weight": "seen_us - start_us"}
        lags |= {"of_both": "0 AS nothing", "replaced": "side AS side"}
        for parts in (moves, lags):
            sums = parts["sums"].format(idle_seconds=idle_seconds)
            self._rows(_SPANS.format(**{**parts, "sums": sums}, much=_MUCH, **days, **limits))
        self._rows(_QUOTAS.format(**limits))
        self._rows(_ABSENCES.format(second=1_000_000, hour=3_600_000_000, **limits))

    def accuracy(self, top: int) -> Accuracy:
        """Return the `top` quotas with the worst seconds."""
        shown = tuple(QuotaAccuracy(*_with_times(row, 6, 7)) for row in self._rows(_ACCURACY, top=top))
        count, worst_1s = self._rows(_ACCURACY_TOTALS)[0]
        return Accuracy(count, worst_1s, shown)

    def moves(self, top: int) -> Moves:
        """Return the moves of the `top` replicas with the most bytes."""
        rows = self._rows(_MOVES, top=top, most=MOST_MOVES_OF_A_REPLICA)
        shown = tuple(Move(Replica(*row[:3]), *_with_times(row[3:], 0, 1, 2)) for row in rows)
        replicas, count, unfinished = self._rows(_MOVE_TOTALS)[0]
        return Moves(replicas, count, unfinished, shown)

    def away(self) -> tuple[Away, ...]:
        """Return the brokers that were away, each as the sidecar saw it that missed it for longest."""
        return tuple(Away(*_with_times(row, 1, 2, 3)) for row in self._rows(_AWAY))

    def slow(self, top: int) -> SlowReplicas:
        """Return the `top` longest spans in which a replica was out of sync."""
        rows = self._rows(_LAG, top=top)
        shown = tuple(SlowReplica(Replica(*row[:3]), *_with_times(row[3:], 0, 1, 2)) for row in rows)
        count, stuck_seconds = self._rows(_LAG_TOTALS)[0]
        return SlowReplicas(count, stuck_seconds, shown)


def _with_times(row: Sequence[Any], *places: int) -> list[Any]:
    """Return a row in which the microseconds at `places` became times; None stays None."""
    return [moment(value) if place in places and value is not None else value for place, value in enumerate(row)]
