# SPDX-License-Identifier: Apache-2.0
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

import secrets
from typing import Final

from weir.pipeline.engine import Column, DataFrame, F, GroupedData
from weir.pipeline.lines import SAMPLE_KEY, Lines, by_partition
from weir.pipeline.tables import BROKER_RATES, BROKER_SAMPLES, CLIENT_RATES, PARTITION_RATES, WINDOW_SECONDS, Table

_MINUTE, _HOUR = WINDOW_SECONDS["minute"], WINDOW_SECONDS["hour"]
_HOUR_BITS: Final = 32
"""A broker and an hour are one number: the broker's id, and below it the hours since 1970 in so many bits."""
_SALT: Final = secrets.randbits(62)
"""Begins what is hashed, so that nobody can choose topics whose hashes are equal."""


def partition_rates(lines: Lines, *, places: int = 2) -> DataFrame:
    """Return the replication of each partition, over all brokers of a side, from so many `places` (tasks).

    On the leader's side a partition has one broker at a time. So its highest rate is the highest that any broker saw,
    and its bytes are divided by the seconds in which any of them took samples. Followers fetch at the same time, so
    their rates are summed.
    """
    # Rows of numbers alone are moved, sorted and compared in half the time of rows with texts. So a block of a topic's
    # partitions on one side is known by a hash, and gets its names at the end. Of a million blocks two have the same
    # hash in one of 40 million runs.
    names = F.xxhash64(F.lit(_SALT), "side", "topic", "block").alias("place")
    # Whole lines are brought to one place, and become rows there. The number of places is named: lines are small, and
    # Spark would put places together until there is one for each core, with a part of the day's rows too large to sort.
    placed = lines.partitions.select(names, *_times(), "micros", "columns").repartition(places, "place")
    seen = by_partition(
        placed.withColumn("line", F.xxhash64("place", "broker_hour")), "bytes_throttled", "bytes_unthrottled"
    )
    # All rows of a line begin alike, and the partition's last bits follow: rows come nearly sorted.
    in_line = F.col("line").bitwiseAND(-1024).bitwiseOR(F.col("partition").bitwiseAND(1023))
    rows = seen.withColumn("bytes", F.col("bytes_throttled") + F.col("bytes_unthrottled")).withColumn("hash", in_line)
    of_brokers = _broker_windows(rows, ["place", "partition"], coverage(lines.ends))
    together = F.least(F.sum("micros"), F.max("last_micros") - F.min("first_micros"))
    whole = of_brokers.groupBy("place", "partition", "window").agg(
        F.sum("bytes").alias("bytes"),
        F.sum("mean").alias("of_all"),
        F.greatest(F.max("micros"), together).alias("micros"),
        *(F.struct(F.max(name).alias("leader"), F.sum(name).alias("follower")).alias(name) for name in ("max", "p95")),
    )
    named = whole.join(F.broadcast(lines.partitions.select(names, "side", "topic").distinct()), "place")
    is_leader = F.col("side") == "leader"
    of_leaders = _thousandths(F.col("bytes"), F.col("micros"))
    of_side = {
        name: F.when(is_leader, F.col(f"{name}.leader")).otherwise(F.col(f"{name}.follower")) for name in ("max", "p95")
    }
    return _table(
        named.withColumns({"mean": F.when(is_leader, of_leaders).otherwise(F.col("of_all")), **of_side}),
        PARTITION_RATES,
    )


def broker_rates(lines: Lines) -> DataFrame:
    """Return the replication of each broker by side, with throttled replicas apart from the others."""
    apart = F.explode(
        F.array(
            F.struct(F.lit(True).alias("throttled"), F.col("bytes_throttled").alias("bytes")),
            F.struct(F.lit(False).alias("throttled"), F.col("bytes_unthrottled").alias("bytes")),
        )
    )
    keys = ["side", "throttled"]
    links = lines.links.select("side", "broker_id", *_times(), "micros", apart.alias("apart"))
    placed = links.select("*", F.col("apart.throttled"), F.col("apart.bytes")).repartition(*keys, "broker_id")
    windows = _broker_windows(placed.withColumn("hash", F.xxhash64(*keys, "broker_hour")), keys, coverage(lines.ends))
    return _table(windows.withColumn("broker_id", _broker(F.col("broker_hour"))), BROKER_RATES)


def broker_samples(lines: Lines) -> DataFrame:
    """Return two rows for each sample, one a side: of 0 bytes where the broker had no connection."""
    of_side = [*SAMPLE_KEY, "side"]
    sizes = ("bytes_throttled", "bytes_unthrottled")
    moved = lines.links.groupBy(*of_side).agg(*(F.sum(name).alias(name) for name in sizes))
    sides = F.explode(F.array(F.lit("leader"), F.lit("follower"))).alias("side")
    table = (
        lines.ends.select(*SAMPLE_KEY, "ended_micros", "micros", sides)
        .join(moved, of_side, "left")
        .fillna(0, [*sizes])
        .withColumn("start", F.timestamp_micros(F.col("ended_micros") - F.col("micros")))
        .withColumn("end", F.timestamp_micros("ended_micros"))
    )
    return as_table(table, BROKER_SAMPLES)


def client_rates(lines: Lines) -> DataFrame:
    """Return a row for each broker and minute with samples that tell what clients moved."""
    told = lines.ends.where(F.col("client_bytes_in").isNotNull() & F.col("client_bytes_out").isNotNull())
    table = told.groupBy("broker_id", F.timestamp_seconds(_start(_MINUTE)).alias("window_start")).agg(
        (F.sum("micros") / 1e6).alias("seconds"),
        F.sum("client_bytes_in").alias("bytes_in"),
        F.sum("client_bytes_out").alias("bytes_out"),
    )
    return as_table(table, CLIENT_RATES)


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


def _times() -> tuple[Column, ...]:
    """The `broker_hour`, `minute` and `sample` of a line: whose it is, and when it ended."""
    broker = F.shiftleft(F.col("broker_id"), _HOUR_BITS)
    return (
        broker.bitwiseOR(_number(_HOUR)).alias("broker_hour"),
        _number(_MINUTE).alias("minute"),
        # a 64-bit hash, so that the start's name is not carried along as text
        F.xxhash64("start_id", "sequence").alias("sample"),
    )


def _number(seconds: int, name: str = "ended") -> Column:
    """How many windows of so many seconds there were since 1970."""
    return F.expr(f"{name} div {seconds}")


def _broker(broker_hour: Column) -> Column:
    return F.shiftright(broker_hour, _HOUR_BITS)


def _window(minute: Column, is_hour: Column) -> Column:
    """A window as a number: twice the minute at which it starts, and one more where it is an hour (1, else 0)."""
    return minute * 2 + is_hour


def _of_broker(broker: Column, window: Column) -> Column:
    """A broker's window as a number. No two of a day are equal: its windows lie within 2,880 of each other."""
    return F.shiftleft(broker, 30) + window


def _broker_windows(rows: DataFrame, keys: list[str], covered: DataFrame) -> DataFrame:
    """Return each broker's `bytes`, and `mean`, `max` and `p95` in thousandths of bytes/s, by key and `window`.

    `rows` has one with `bytes` for each key, sample and peer, with `_times` and a `hash` that is equal in rows of the
    same keys, broker and hour. These are in one task.
    """
    # Rows are sorted once, and every grouping is by a beginning of that order. It begins with a number, which decides
    # most comparisons.
    group = ["hash", *keys, "broker_hour"]
    by_sample = _in_order(rows.select(*group, "minute", "sample", "bytes", "micros"), *group, "minute", "sample").agg(
        F.sum("bytes").alias("bytes"),
        F.first("micros").alias("micros"),  # equal in all rows; with `max`, Spark would drop the sort order
    )
    rate = _thousandths(F.col("bytes"), F.greatest(F.col("micros"), F.lit(1_000_000)))
    by_minute = _in_order(by_sample.withColumn("rate", rate), *group, "minute").agg(
        F.sum("bytes").alias("bytes"), F.collect_list("rate").alias("rates")
    )
    minute = F.struct(_window(F.col("minute"), F.lit(0)).alias("window"), "bytes", "rates")
    by_hour = _in_order(by_minute.withColumn("of_minute", minute), *group).agg(
        F.sum("bytes").alias("bytes"),
        F.collect_list("of_minute").alias("minutes"),
        F.flatten(F.collect_list("rates")).alias("rates"),
    )
    first_minute = F.col("broker_hour").bitwiseAND((1 << _HOUR_BITS) - 1) * (_HOUR // _MINUTE)
    hour = F.struct(_window(first_minute, F.lit(1)).alias("window"), "bytes", "rates")
    windows = by_hour.select(*keys, "broker_hour", F.inline(F.concat("minutes", F.array(hour))))
    start = _number(_MINUTE, "window_start")
    is_hour = (F.col("window") == "hour").cast("int")
    of_broker = _of_broker(F.col("broker_id"), _window(start, is_hour)).alias("of_broker")
    seen = covered.select(of_broker, "samples", "micros", "first_micros", "last_micros")
    found = windows.withColumn("of_broker", _of_broker(_broker(F.col("broker_hour")), F.col("window")))
    return found.join(F.broadcast(seen), "of_broker").select(
        *keys,
        "broker_hour",
        "window",
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
    is_hour = F.col("window").bitwiseAND(1) == 1
    named = rates.withColumns({f"{name}_bytes_per_second": value for name, value in shown.items()}).withColumns(
        {
            "window_start": F.timestamp_seconds(F.shiftright("window", 1) * _MINUTE),
            "window": F.when(is_hour, "hour").otherwise("minute"),
        }
    )
    return as_table(named, table)


def as_table(frame: DataFrame, table: Table) -> DataFrame:
    """Return a frame with a table's columns, in its order and types."""
    return frame.select(*(F.col(name).cast(kind).alias(name) for name, kind in table.columns.items()))


def _start(seconds: int) -> Column:
    return F.col("ended") - F.col("ended") % seconds


def _thousandths(size: Column, micros: Column) -> Column:
    """A rate in thousandths of bytes/s, rounded. F.round would make a BigDecimal of each value."""
    return F.floor(size * 1e9 / micros + 0.5)
