"""Rates by minute and by hour: pure functions from exported lines to tables.

A sample belongs, as a whole, to the windows in which it ended; one that ended at 12:00:00 to those before. The bytes of
a window's samples are divided by the samples' own seconds, so a window that was sampled in part has the rate of that
part. A partition without a line in a sample moved nothing in it: this is a rate of 0, and counts for the mean and the
p95. The highest rate is that of a second at least: the last sample of a process may be shorter, and a quota lets the
bytes of a second pass at once.

All sums are of whole numbers (bytes, microseconds, thousandths of bytes/s). So their order does not matter, and a
second run gives the same digits.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from pipeline.read import Lines, by_partition
from pipeline.tables import BROKER_RATES, PARTITION_RATES, WINDOW_SECONDS, Table

_MINUTE, _HOUR = WINDOW_SECONDS["minute"], WINDOW_SECONDS["hour"]


def partition_rates(lines: Lines, *, places: int = 2) -> DataFrame:
    """Return the replication of each partition, over all brokers of a side, from so many `places` (tasks).

    On the leader's side a partition has one broker at a time. So its highest rate is the highest that any broker saw,
    and its bytes are divided by the seconds in which any of them took samples. Followers fetch at the same time, so
    their rates are summed.
    """
    place = ["side", "topic", "block"]
    keys = [*place, "partition"]
    moved = ("bytes_throttled", "bytes_unthrottled")
    # Whole lines are brought to one place, and become rows there. The number of places is named: lines are small, and
    # Spark would put places together until there is one for each core, with a part of the day's rows too large to sort.
    placed = (
        _with_windows(lines.partitions)
        .select(*place, "broker_id", "hour", "minute", "sample", "micros", "columns")
        .repartition(places, *place)
    )
    seen = by_partition(placed.withColumn("place", F.xxhash64(*place, "broker_id", "hour")), *moved)
    rows = seen.withColumn("bytes", _bytes()).withColumn("hash", F.xxhash64("place", "partition"))
    of_brokers = _broker_windows(rows, keys, coverage(lines.ends))
    is_leader = F.col("side") == "leader"
    together = F.least(F.sum("micros"), F.max("last_micros") - F.min("first_micros"))
    whole = of_brokers.groupBy(*keys, "window", "window_start").agg(
        F.sum("bytes").alias("bytes"),
        F.sum("mean").alias("of_all"),
        F.greatest(F.max("micros"), together).alias("micros"),
        *(F.when(is_leader, F.max(name)).otherwise(F.sum(name)).alias(name) for name in ("max", "p95")),
    )
    of_leaders = _thousandths(F.col("bytes"), F.col("micros"))
    return _table(whole.withColumn("mean", F.when(is_leader, of_leaders).otherwise(F.col("of_all"))), PARTITION_RATES)


def broker_rates(lines: Lines) -> DataFrame:
    """Return the replication of each broker by side, with throttled replicas apart from the others."""
    apart = F.explode(
        F.array(
            F.struct(F.lit(True).alias("throttled"), F.col("bytes_throttled").alias("bytes")),
            F.struct(F.lit(False).alias("throttled"), F.col("bytes_unthrottled").alias("bytes")),
        )
    )
    keys = ["side", "throttled"]
    links = _with_windows(lines.links.drop("bytes")).withColumn("apart", apart)
    seen = links.select("broker_id", "side", "hour", "minute", "sample", "micros", "apart.*")
    placed = seen.repartition("side", "throttled", "broker_id")
    rows = placed.withColumn("hash", F.xxhash64("side", "throttled", "broker_id", "hour"))
    return _table(_broker_windows(rows, keys, coverage(lines.ends)), BROKER_RATES)


def coverage(ends: DataFrame) -> DataFrame:
    """Return how many `samples` of each broker ended in a window, and their `micros`; `ends` ends each sample.

    `first_micros` is when the first of them began, `last_micros` when the last one ended.
    """
    first, last = F.min(F.col("ended_micros") - F.col("micros")), F.max("ended_micros")
    frames = (
        ends.groupBy("broker_id", F.lit(window).alias("window"), _start(seconds).alias("window_start")).agg(
            F.count(F.lit(1)).alias("samples"),
            F.sum("micros").alias("micros"),
            first.alias("first_micros"),
            last.alias("last_micros"),
        )
        for window, seconds in WINDOW_SECONDS.items()
    )
    of_minutes, of_hours = frames
    return of_minutes.union(of_hours)


def _with_windows(lines: DataFrame) -> DataFrame:
    windows = {"hour": _start(_HOUR), "minute": _start(_MINUTE), "sample": _sample()}
    return lines.withColumns(windows)


def _broker_windows(placed: DataFrame, keys: list[str], covered: DataFrame) -> DataFrame:
    """Return each broker's `bytes`, and `mean`, `max` and `p95` in thousandths of bytes/s, by key and window.

    `placed` has a row with `bytes` for each key, sample and peer. Rows of the same keys and broker are in one place,
    and rows of the same keys, broker and hour have the same `hash`.
    """
    # Rows are sorted once, and every grouping is by a beginning of that order. It begins with a number, which decides
    # most comparisons.
    group = ["hash", *keys, "broker_id", "hour"]
    by_sample = _in_order(placed.select(*group, "minute", "sample", "bytes", "micros"), *group, "minute", "sample").agg(
        F.sum("bytes").alias("bytes"),
        F.first("micros").alias("micros"),  # equal in all rows; with `max`, Spark would drop the sort order
    )
    rate = _thousandths(F.col("bytes"), F.greatest(F.col("micros"), F.lit(1_000_000)))
    by_minute = _in_order(by_sample, *group, "minute").agg(
        F.sum("bytes").alias("bytes"), F.collect_list(rate).alias("rates")
    )
    minute = F.struct(F.lit("minute").alias("window"), F.col("minute").alias("window_start"), "bytes", "rates")
    by_hour = _in_order(by_minute, *group).agg(F.sum("bytes").alias("bytes"), F.collect_list(minute).alias("minutes"))
    hour = F.struct(
        F.lit("hour").alias("window"),
        F.col("hour").alias("window_start"),
        "bytes",
        F.flatten(F.col("minutes.rates")).alias("rates"),
    )
    windows = by_hour.select(*keys, "broker_id", F.inline(F.concat("minutes", F.array(hour))))
    return windows.join(F.broadcast(covered), ["broker_id", "window", "window_start"]).select(
        *keys,
        "broker_id",
        "window",
        "window_start",
        "bytes",
        "micros",
        "first_micros",
        "last_micros",
        _thousandths(F.col("bytes"), F.col("micros")).alias("mean"),
        F.array_max("rates").alias("max"),
        _p95().alias("p95"),
    )


def _in_order(frame: DataFrame, *names: str) -> GroupedData:
    """Group rows by sorting them where they are: one pass, without a table of all groups in memory.

    Rows that are in this order already are not sorted again.
    """
    return frame.sortWithinPartitions(*names).groupBy(*names)


def _p95() -> Column:
    """The p95 as nearest rank: at most a twentieth of the samples is above it.

    Samples without a line count as rate 0.
    """
    above = F.floor(F.col("samples") / 20).cast("int")
    return F.coalesce(F.get(F.sort_array("rates", asc=False), above), F.lit(0).cast("long"))


def _table(rates: DataFrame, table: Table) -> DataFrame:
    shown = {name: F.col(name) / 1000 for name in ("mean", "max", "p95")}
    named = rates.withColumns({f"{name}_bytes_per_second": value for name, value in shown.items()}).withColumn(
        "window_start", F.timestamp_seconds("window_start")
    )
    return as_table(named, table)


def as_table(frame: DataFrame, table: Table) -> DataFrame:
    """Return a frame with a table's columns, in its order and types."""
    return frame.select(*(F.col(name).cast(kind).alias(name) for name, kind in table.columns.items()))


def _bytes() -> Column:
    return F.col("bytes_throttled") + F.col("bytes_unthrottled")


def _sample() -> Column:
    """A number for each sample of a broker: a 64-bit hash, so that the start's name is not carried along as text."""
    return F.xxhash64("start_id", "sequence")


def _start(seconds: int) -> Column:
    return F.col("ended") - F.col("ended") % seconds


def _thousandths(size: Column, micros: Column) -> Column:
    """A rate in thousandths of bytes/s, rounded. F.round would make a BigDecimal of each value."""
    return F.floor(size * 1e9 / micros + 0.5)
