# SPDX-License-Identifier: Apache-2.0
"""Made-up tables of one day: a daily rhythm, a move under a quota in its middle, and a broker that comes back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import duckdb

from weir.pipeline.tables import (
    BROKER_RATES,
    CLIENT_RATES,
    MOVES,
    PARTITION_RATES,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    Table,
)

DAY: Final = datetime(2026, 11, 2, tzinfo=UTC)

_TOPICS: Final = ("orders", "payments", "clicks", "sessions", "audit", "inventory", "shipments", "search")
_QUOTA: Final = 20_000_000
_MOVE: Final = (9 * 60, 13 * 60)  # minutes of the day in which replicas move
_AWAY: Final = (15 * 60 + 15, 16 * 60)  # those in which the last broker is away

# In DuckDB, for there may be many: a partition's share, a rhythm of the day, and noise, all from hash().
_PARTITION_MINUTES: Final = """
    CREATE TABLE minutes AS
    SELECT minute, side, topic, partition, least(bytes, 60 * 30e6) AS bytes FROM (
        SELECT minute, side, $topics[1 + number % len($topics)] AS topic, number // len($topics) AS partition,
               60 * 8e6 / (1 + number % 97) ** 1.3
                 * (1 + 0.7 * sin((minute / 1440.0 - 0.3) * 2 * pi()))
                 * (0.85 + 0.3 * (hash(number, minute) % 1000) / 1000.0)
                 * CASE WHEN number % 13 = 5 AND minute % 180 < 150 THEN 0 ELSE 1 END AS bytes
        FROM range($partitions) AS p(number), range($minutes) AS m(minute), (VALUES ('leader'), ('follower')) AS s(side)
    ) WHERE bytes > 0
"""

_PARTITION_RATES: Final = """
    SELECT $day + minute * INTERVAL 1 MINUTE AS window_start, 'minute' AS "window", side, topic, partition,
           bytes / 60 AS mean_bytes_per_second, bytes / 52 AS max_bytes_per_second, bytes / 54 AS p95_bytes_per_second,
           CAST(bytes AS BIGINT) AS bytes
    FROM minutes
    UNION ALL
    SELECT $day + minute // 60 * INTERVAL 1 HOUR, 'hour', side, topic, partition,
           sum(bytes) / 3600, max(bytes) / 52, max(bytes) / 54, CAST(sum(bytes) AS BIGINT)
    FROM minutes GROUP BY ALL
"""

_BROKER_RATES: Final = """
    WITH rates AS (
        SELECT minute, broker_id, side, throttled,
               CASE WHEN throttled
                 THEN CASE WHEN minute BETWEEN $first AND $last THEN $quota * (0.99 + 0.015 * noise)
                           WHEN broker_id = $brokers AND side = 'follower' AND minute BETWEEN $back AND $back + 70
                           THEN $quota * (0.98 + 0.03 * noise) ELSE 0 END
                 ELSE 9e6 * (0.7 + 0.6 * broker_id / $brokers) * (1 + 0.7 * sin((minute / 1440.0 - 0.3) * 2 * pi()))
                      * (0.85 + 0.3 * noise) END AS rate
        FROM (SELECT *, (hash(minute, broker_id, side, throttled) % 1000) / 1000.0 AS noise
              FROM range($minutes) AS m(minute), range(1, $brokers + 1) AS b(broker_id),
                   (VALUES ('leader'), ('follower')) AS s(side), (VALUES (true), (false)) AS t(throttled))
        WHERE NOT (broker_id = $brokers AND minute BETWEEN $away AND $back)
    )
    SELECT $day + minute * INTERVAL 1 MINUTE AS window_start, 'minute' AS "window", broker_id, side, throttled,
           rate AS mean_bytes_per_second, rate * 1.02 AS max_bytes_per_second, rate * 1.01 AS p95_bytes_per_second,
           CAST(rate * 60 AS BIGINT) AS bytes
    FROM rates
    UNION ALL
    SELECT $day + minute // 60 * INTERVAL 1 HOUR, 'hour', broker_id, side, throttled,
           avg(rate), max(rate) * 1.02, max(rate) * 1.01, CAST(sum(rate) * 60 AS BIGINT)
    FROM rates GROUP BY ALL
"""

# Clients read a little less while replicas move.
_CLIENT_RATES: Final = """
    SELECT $day + minute * INTERVAL 1 MINUTE AS window_start, broker_id, 60.0 AS seconds,
           CAST(60 * 6e6 * rate AS BIGINT) AS bytes_in,
           CAST(60 * 43e6 * rate * CASE WHEN minute BETWEEN $first AND $last THEN 0.9 ELSE 1 END AS BIGINT) AS bytes_out
    FROM (SELECT *, (1 + 0.3 * sin((minute / 1440.0 - 0.3) * 2 * pi()))
                    * (0.9 + 0.2 * (hash(minute, broker_id) % 1000) / 1000.0) AS rate
          FROM range($minutes) AS m(minute), range(1, $brokers + 1) AS b(broker_id))
    WHERE NOT (broker_id = $brokers AND minute BETWEEN $away AND $back)
"""

# In force while replicas move, and for the broker that comes back.
_ACCURACY: Final = """
    SELECT side || '.replication.throttled.rate' AS quota_id, broker_id, side, $quota AS rate_bytes_per_second,
           'strict' AS policy, $day + begins * INTERVAL 1 MINUTE AS start, $day + ends * INTERVAL 1 MINUTE AS "end",
           60.0 * (ends - begins) AS seconds, 0.99 + broker_id * 0.001 AS mean_over_quota,
           1.0 + (hash(broker_id, side) % 30) / 1000.0 AS worst_1s_over_quota,
           0.995 + (hash(broker_id, side) % 9) / 1000.0 AS worst_10s_over_quota,
           hash(broker_id, side) % 14 AS seconds_over,
           60.0 * (ends - begins) AS seconds_left_out,
           CAST(hash(side, broker_id) % 90000000 AS BIGINT) AS bytes_left_out
    FROM range(1, $brokers + 1) AS b(broker_id), (VALUES ('leader'), ('follower')) AS s(side),
         (VALUES ($first, $last), ($back, $back + 71)) AS f(begins, ends)
    WHERE begins = $first OR broker_id = $brokers AND side = 'follower'
"""

# Every tenth partition moves; the largest come last.
_MOVES: Final = """
    WITH moved AS (
        SELECT number, 1 + number % $brokers AS replica, number % 130 = 20 AS is_open,
               $first + (hash(number) % 12) AS from_minute,
               $first + 15 + ($last - $first - 15) * ((number * 37) % $partitions) / $partitions AS to_minute
        FROM range(0, $partitions, 10) AS p(number)
    )
    SELECT $topics[1 + number % len($topics)] AS topic, number // len($topics) AS partition, replica,
           replica AS broker_id, 'follower' AS side, $day + from_minute * INTERVAL 1 MINUTE AS start,
           CASE WHEN NOT is_open THEN $day + to_minute * INTERVAL 1 MINUTE END AS "end",
           CAST((to_minute - from_minute) * 6e7 AS BIGINT) AS bytes,
           CAST((to_minute - from_minute) * 6e7 AS BIGINT) AS bytes_throttled,
           1e6 AS mean_bytes_per_second, $quota AS quota_bytes_per_second,
           2.0 + hash(number) % 200 / 10.0 AS longest_stall_seconds
    FROM moved
"""

_LAG: Final = """
    SELECT $topics[1 + number % len($topics)] AS topic, number // len($topics) AS partition, $brokers AS replica,
           $brokers AS broker_id, 'follower' AS side, $day + $away * INTERVAL 1 MINUTE AS start,
           CASE WHEN number % 40 <> 7 THEN $day + ($back + 2 + number % 70) * INTERVAL 1 MINUTE END AS "end",
           CASE WHEN number % 40 <> 7 THEN 60.0 * (47 + number % 70) END AS seconds_to_in_sync,
           CAST(1000 + hash(number) % 900000 AS BIGINT) AS max_lag_messages,
           60.0 * (47 + number % 70) AS max_lag_seconds,
           CASE WHEN number % 40 = 7 THEN 1 ELSE 0 END AS stuck_spans,
           CASE WHEN number % 40 = 7 THEN 312.0 ELSE 0 END AS stuck_seconds
    FROM range(7, $partitions, 8) AS p(number)
"""

_QUERIES: Final = (
    (PARTITION_RATES, _PARTITION_RATES),
    (BROKER_RATES, _BROKER_RATES),
    (CLIENT_RATES, _CLIENT_RATES),
    (THROTTLE_ACCURACY, _ACCURACY),
    (MOVES, _MOVES),
    (REPLICA_LAG, _LAG),
)


def make_tables(folder: Path, brokers: int, partitions: int, minutes: int) -> int:
    """Write the tables of the day's first `minutes` below `folder`; return their rows."""
    values = {
        "day": DAY.replace(tzinfo=None),
        "topics": list(_TOPICS),
        "brokers": brokers,
        "partitions": partitions,
        "minutes": minutes,
        "quota": _QUOTA,
        "first": _MOVE[0] * minutes // 1440,
        "last": _MOVE[1] * minutes // 1440,
        "away": _AWAY[0] * minutes // 1440,
        "back": _AWAY[1] * minutes // 1440,
    }
    with duckdb.connect(":memory:") as connection:
        _execute(connection, _PARTITION_MINUTES, values)
        return sum(_write(connection, folder, table, query, values) for table, query in _QUERIES)


def _write(
    connection: duckdb.DuckDBPyConnection, folder: Path, table: Table, query: str, values: dict[str, object]
) -> int:
    file = folder / table.name / f"date={DAY:%Y-%m-%d}" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    _execute(connection, f"CREATE TABLE {table.name} AS {query}", values)
    connection.execute(f"COPY {table.name} TO '{file}' (FORMAT parquet)")
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()  # noqa: S608 - a table's name
    return int(rows)


def _execute(connection: duckdb.DuckDBPyConnection, query: str, values: dict[str, object]) -> None:
    connection.execute(query, {name: value for name, value in values.items() if f"${name}" in query})
