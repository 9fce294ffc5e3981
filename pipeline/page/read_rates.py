# SPDX-License-Identifier: Apache-2.0
"""Rates of brokers and partitions by column, and the quotas in force."""

from __future__ import annotations

from typing import Any, Final

from weir.pipeline.open_tables import OpenTables
from weir.pipeline.page.contents import (
    BrokerClients,
    Brokers,
    BrokerSide,
    Columns,
    PartitionBytes,
    Partitions,
    Replication,
)
from weir.pipeline.page.moments import MINUTE_MICROS, micros
from weir.pipeline.tables import WINDOW_SECONDS

# Windows that lie in the range as a whole, and the finest windows at its two ends. A finest window that an end cuts
# counts as a whole.
_WINDOWS: Final = """
    CREATE VIEW {name} AS
    SELECT *, CAST((epoch_us(window_start) - {first}) // {width} AS INTEGER) AS number,
           CASE "window" WHEN '{window}' THEN {seconds} ELSE {finest_seconds} END AS seconds
    FROM {table}
    WHERE "window" = '{window}' AND epoch_us(window_start) >= {whole_since} AND epoch_us(window_start) < {whole_until}
       OR "window" = '{finest}' AND epoch_us(window_start) > {since} - {finest_width}
          AND epoch_us(window_start) < {until}
          AND NOT (epoch_us(window_start) >= {whole_since} AND epoch_us(window_start) < {whole_until})
"""

# Samples, cut at the begins of columns and at the ends of the range: a part has its part of the bytes. Of sides that
# had no connection at any time nothing is told.
_PIECES: Final = """
    CREATE VIEW broker_pieces AS
    WITH samples AS (
        SELECT *, epoch_us(start) AS start_us, epoch_us("end") AS end_us, end_us - start_us AS length
        FROM broker_samples SEMI JOIN broker_windows USING (broker_id, side)
        WHERE epoch_us("end") > {since} AND epoch_us(start) < {until}
    ), numbered AS (
        SELECT *, unnest(range((greatest(start_us, {since}) - {first}) // {width},
                               (least(end_us, {until}) - 1 - {first}) // {width} + 1)) AS number
        FROM samples
    ), sides AS (
        SELECT *, true AS throttled, bytes_throttled AS moved FROM numbered
        UNION ALL SELECT *, false, bytes_unthrottled FROM numbered
    )
    SELECT broker_id, side, throttled, CAST(number AS INTEGER) AS number,
           least(end_us, {until}, {first} + (sides.number + 1) * {width})
             - greatest(start_us, {since}, {first} + sides.number * {width}) AS seconds,
           moved * (seconds / length) AS bytes, moved * 1e6 / length AS mean_bytes_per_second,
           moved * 1e6 / greatest(length, 1000000) AS max_bytes_per_second
    FROM sides
"""

_BROKER_TOTALS: Final = """
    WITH sides AS (
        SELECT side, sum(bytes) AS size, coalesce(sum(bytes) FILTER (throttled), 0) AS throttled_size
        FROM {brokers} GROUP BY side
    )
    SELECT (SELECT count(DISTINCT broker_id) FROM {brokers}), max(size), max(throttled_size)
    FROM sides
"""

# Those first whose quota held replicas back for longest, on one side: `quota_minutes` is that of the verdict.
_TOP_BROKERS: Final = """
    CREATE TABLE top_brokers AS
    WITH held AS (
        SELECT broker_id, max(of_side) AS held
        FROM (SELECT broker_id, side, sum(held) AS of_side FROM quota_minutes GROUP BY ALL) GROUP BY ALL
    ), moved AS (SELECT broker_id, sum(bytes) AS size FROM {brokers} GROUP BY ALL)
    SELECT broker_id, coalesce(held, 0) AS held FROM moved LEFT JOIN held USING (broker_id)
    ORDER BY 2 DESC, size DESC, broker_id LIMIT {top}
"""

_ORDER: Final = "SELECT broker_id FROM top_brokers ORDER BY held DESC, broker_id"

_BROKERS: Final = """
    SELECT broker_id, side, throttled, sum(bytes), sum(mean_bytes_per_second * seconds) / sum(seconds),
           max(max_bytes_per_second)
    FROM {brokers} SEMI JOIN top_brokers USING (broker_id)
    GROUP BY ALL ORDER BY ALL
"""

_BROKER_COLUMNS: Final = """
    SELECT broker_id, side, throttled, number, sum(mean_bytes_per_second * seconds) / sum(seconds),
           max(max_bytes_per_second)
    FROM {brokers} SEMI JOIN top_brokers USING (broker_id)
    GROUP BY ALL
"""

_QUOTA_COLUMNS: Final = """
    SELECT broker_id, side, number, arg_max(rate_bytes_per_second, start)
    FROM throttle_accuracy SEMI JOIN top_brokers USING (broker_id)
    JOIN (SELECT unnest(range($count)) AS number)
      ON epoch_us(start) < $first + (number + 1) * $width AND epoch_us("end") > $first + number * $width
    WHERE quota_id = side || '.replication.throttled.rate'
    GROUP BY ALL
"""

# Both sides may have seen a partition, and each only in part: take the one with more bytes.
_PARTITION_SIDES: Final = """
    CREATE TABLE partition_sides AS
    SELECT topic, partition, side, sum(bytes) AS size, max(max_bytes_per_second) AS highest
    FROM partition_windows GROUP BY topic, partition, side
    QUALIFY row_number() OVER (PARTITION BY topic, partition ORDER BY size DESC, side) = 1
"""

_PARTITIONS: Final = "SELECT * FROM partition_sides ORDER BY size DESC, topic, partition LIMIT $top"

_PARTITION_TOTALS: Final = "SELECT count(*), coalesce(sum(size), 0) FROM partition_sides"

_PARTITION_COLUMNS: Final = """
    SELECT topic, partition, number, sum(mean_bytes_per_second * seconds) FROM partition_windows
    SEMI JOIN (SELECT * FROM partition_sides ORDER BY size DESC, topic, partition LIMIT $top)
      USING (topic, partition, side)
    GROUP BY ALL
"""

_SAMPLED_SECONDS: Final = """
    SELECT number, sum(seconds) FROM (SELECT DISTINCT number, window_start, seconds FROM broker_windows) GROUP BY number
"""

# A broker without a row in a window that was sampled had no connection in it.
_SAMPLED_COLUMNS: Final = """
    SELECT broker_id, CAST((epoch_us(window_start) - $first) // $width AS INTEGER) AS number FROM coverage
    SEMI JOIN top_brokers USING (broker_id)
    WHERE samples > 0 AND epoch_us(window_start) >= $since AND epoch_us(window_start) < $until
    GROUP BY ALL
"""


# A minute counts in each column that it touches: columns may be shorter.
_CLIENT_COLUMNS: Final = """
    SELECT broker_id, CAST(number AS INTEGER) AS number, sum(bytes_out) / sum(seconds), sum(bytes_in) / sum(seconds)
    FROM (
        SELECT *, epoch_us(window_start) AS start_us,
               unnest(range((greatest(start_us, $since) - $first) // $width,
                            (least(start_us + $minute, $until) - 1 - $first) // $width + 1)) AS number
        FROM client_rates SEMI JOIN top_brokers USING (broker_id)
        WHERE seconds > 0 AND epoch_us(window_start) > $since - $minute AND epoch_us(window_start) < $until
    )
    GROUP BY ALL
"""


class RatesReader:
    """Queries the open tables in the range: by `window` (minutes or hours), its two ends by `finest`.

    Brokers have `columns`, and partitions `by_window`. Where these are wider, brokers are read by sample.
    """

    def __init__(self, tables: OpenTables, columns: Columns, by_window: Columns, window: str, finest: str) -> None:
        self._tables = tables
        self._columns = columns
        self._by_window = by_window
        self._brokers = "broker_windows" if columns.seconds >= by_window.seconds else "broker_pieces"
        since, until = micros(columns.since), micros(columns.until)
        width = WINDOW_SECONDS[window] * 1_000_000
        # in the finest windows everything is read that the range touches
        whole = (-(-since // width) * width, until // width * width) if window != finest else (0, 0)
        for name, table in (("broker_windows", "broker_rates"), ("partition_windows", "partition_rates")):
            tables.rows(
                _WINDOWS.format(
                    name=name,
                    table=table,
                    window=window,
                    seconds=WINDOW_SECONDS[window],
                    finest=finest,
                    finest_seconds=WINDOW_SECONDS[finest],
                    finest_width=WINDOW_SECONDS[finest] * 1_000_000,
                    first=micros(by_window.first),
                    width=by_window.seconds * 1_000_000,
                    since=since,
                    until=until,
                    whole_since=whole[0],
                    whole_until=whole[1],
                )
            )
        if self._brokers == "broker_pieces":
            cut = {"first": micros(columns.first), "width": columns.seconds * 1_000_000, "since": since, "until": until}
            tables.rows(_PIECES.format(**cut))

    def _rows(self, query: str, **values: object) -> list[Any]:
        return self._tables.rows(query.replace("{brokers}", self._brokers), **values)

    def brokers(self, top: int) -> Brokers:
        """Return the `top` brokers, held back longest first, each with its sides, series and quotas."""
        ((count, size, throttled_size),) = self._rows(_BROKER_TOTALS)
        if not count:
            return Brokers()
        self._rows(_TOP_BROKERS.replace("{top}", str(int(top))))
        # samples tell by themselves of a broker without a connection
        idle = self._idle() if self._brokers == "broker_windows" else {}
        means: dict[tuple[int, str, bool], dict[int, float]] = {}
        peaks: dict[tuple[int, str, bool], dict[int, float]] = {}
        for broker_id, side, throttled, number, mean, peak in self._rows(_BROKER_COLUMNS):
            means.setdefault((broker_id, side, throttled), {})[number] = mean
            peaks.setdefault((broker_id, side, throttled), {})[number] = peak
        found = {
            (broker_id, side, throttled): Replication(
                round(size),
                mean,
                highest,
                self._series(idle.get(broker_id, {}) | means[broker_id, side, throttled]),
                self._series(idle.get(broker_id, {}) | peaks[broker_id, side, throttled]),
            )
            for broker_id, side, throttled, size, mean, highest in self._rows(_BROKERS)
        }
        quotas = self._quotas()
        nothing = Replication(0, 0.0, 0.0, self._series({}), self._series({}))
        shown = tuple(
            BrokerSide(
                broker_id,
                side,
                found.get((broker_id, side, True), nothing),
                found.get((broker_id, side, False), nothing),
                self._series(quotas.get((broker_id, side), {})),
            )
            for (broker_id,) in self._rows(_ORDER)
            for side in sorted({side for found_id, side, _ in found if found_id == broker_id}, reverse=True)
        )
        return Brokers(count, round(size), round(throttled_size), shown, self._clients())

    def partitions(self, top: int) -> Partitions:
        """Return the `top` partitions with the most bytes in, each with its series."""
        self._rows(_PARTITION_SIDES)
        ((count, size),) = self._rows(_PARTITION_TOTALS)
        # a partition without a row in a window that was sampled has moved nothing in it
        sampled = dict(self._rows(_SAMPLED_SECONDS))
        rates: dict[tuple[str, int], dict[int, float]] = {}
        for topic, partition, number, moved in self._rows(_PARTITION_COLUMNS, top=top):
            rates.setdefault((topic, partition), dict.fromkeys(sampled, 0.0))[number] = moved / sampled.get(number, 1)
        shown = tuple(
            PartitionBytes(topic, partition, side, of_it, highest, _series(rates[topic, partition], self._by_window))
            for topic, partition, side, of_it, highest in self._rows(_PARTITIONS, top=top)
        )
        return Partitions(count, size, shown)

    def _clients(self) -> tuple[BrokerClients, ...]:
        columns = self._columns
        asked = {"first": micros(columns.first), "width": columns.seconds * 1_000_000, "minute": MINUTE_MICROS}
        limits = {"since": micros(columns.since), "until": micros(columns.until)}
        found: dict[int, tuple[dict[int, float], dict[int, float]]] = {}
        for broker_id, number, read, written in self._rows(_CLIENT_COLUMNS, **asked, **limits):
            of = found.setdefault(broker_id, ({}, {}))
            of[0][number], of[1][number] = read, written
        return tuple(
            BrokerClients(broker_id, self._series(read), self._series(written))
            for broker_id, (read, written) in sorted(found.items())
            if any(read.values()) or any(written.values())
        )

    def _idle(self) -> dict[int, dict[int, float]]:
        """Return a rate of 0 for each column in which a broker was sampled."""
        columns = self._columns
        found: dict[int, dict[int, float]] = {}
        asked = {"first": micros(columns.first), "width": columns.seconds * 1_000_000}
        limits = {"since": micros(columns.since), "until": micros(columns.until)}
        for broker_id, number in self._rows(_SAMPLED_COLUMNS, **asked, **limits):
            found.setdefault(broker_id, {})[number] = 0.0
        return found

    def _quotas(self) -> dict[tuple[int, str], dict[int, int]]:
        quotas: dict[tuple[int, str], dict[int, int]] = {}
        asked = {
            "count": self._columns.count,
            "first": micros(self._columns.first),
            "width": self._columns.seconds * 1_000_000,
        }
        for broker_id, side, number, rate in self._rows(_QUOTA_COLUMNS, **asked):
            quotas.setdefault((broker_id, side), {})[number] = rate
        return quotas

    def _series(self, values: dict[int, Any]) -> tuple[Any, ...]:
        return _series(values, self._columns)


def _series(values: dict[int, Any], columns: Columns) -> tuple[Any, ...]:
    return tuple(map(values.get, range(columns.count)))
