"""Samples: which are whole, which lines are there twice, and what is quarantined. Pure functions from parsed lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from weir.pipeline.damaged import DAMAGED_FILE
from weir.pipeline.hours import hour_of
from weir.pipeline.read import FIELDS, MAX_CHARACTERS, PARTITION_KINDS, SAMPLE_KEY
from weir.samples.schema import IntervalLine, LimitLine, Line, LinkLine, QuotaLine, kind_of

LINE_KEY: Final = (
    *("kind", *SAMPLE_KEY, "side", "peer", "topic", "block", "partition"),
    *("quota", "in_force_from_seconds", "client_id"),
)
"""The columns that identify a line (null where a kind lacks one). Two lines that agree in all of them are duplicates.
"""

PARTIAL_SAMPLE: Final = "partial_sample"
"""The reason that samples which are not whole are quarantined for."""

QUARANTINE_COLUMNS: Final = ("reason", "file", "line", "lines")

_TIMES: Final = ("ended", "ended_micros", "end_seconds", "micros")
_COUNTED: Final[tuple[tuple[type[Line], ...], ...]] = (PARTITION_KINDS, (LinkLine,), (QuotaLine,), (LimitLine,))


def samples(lines: DataFrame) -> DataFrame:
    """Return a row for each sample: its key, whether it is `whole`, and whether lines are there `twice`.

    `lines` and `partitions` are how many of these it has; the times are those of its lines.

    A sample is whole when it has its end, and as many partitions, links, quotas and limits as the end says. A line that
    is there twice counts once.
    """

    def count(kinds: Sequence[type[Line]]) -> Column:
        return F.sum(F.when(F.col("kind").isin([kind_of(kind) for kind in kinds]), F.col("size")).otherwise(0))

    told = ("partitions", "links", "quotas", "limits")
    size = F.when(F.col("columns").isNotNull(), F.size("columns.partition")).otherwise(1)
    once = (
        lines.withColumn("size", size)
        .groupBy(*SAMPLE_KEY, "kind", F.xxhash64(*LINE_KEY).alias("line"))
        .agg(F.count(F.lit(1)).alias("copies"), *(F.max(name).alias(name) for name in ("size", *told, *_TIMES)))
    )
    counted = once.groupBy(*SAMPLE_KEY).agg(
        F.sum("copies").alias("lines"),
        (F.max("copies") > 1).alias("twice"),
        *(F.max(name).alias(name) for name in _TIMES),
        count([IntervalLine]).alias("ends"),
        *(count(kinds).alias(f"{name}_found") for name, kinds in zip(told, _COUNTED, strict=True)),
        *(F.max(name).alias(name) for name in told),
    )
    expected = {name: F.col(name) for name in told} | {"limits": F.coalesce("limits", F.lit(0))}  # 0 in version 1
    is_whole = reduce(and_, (F.col(f"{name}_found") == expected[name] for name in told)) & (F.col("ends") == 1)
    return counted.select(
        *SAMPLE_KEY, *_TIMES, "lines", "partitions", F.coalesce(is_whole, F.lit(False)).alias("whole"), "twice"
    )


def missing_samples(found: DataFrame) -> DataFrame:
    """Return one row, `missing`: how many numbers are missing in the samples' sequences.

    Partial samples count as present.
    """
    by_start = found.groupBy("broker_id", "start_id").agg(
        (F.max("sequence") - F.min("sequence") + 1 - F.count(F.lit(1))).alias("missing")
    )
    return by_start.agg(F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"))


def without_partial(lines: DataFrame, found: DataFrame) -> DataFrame:
    """Return the lines of whole samples; `found` is the result of `samples`."""
    partial = found.where(~F.col("whole")).select(*SAMPLE_KEY)
    return lines.join(F.broadcast(partial), [*SAMPLE_KEY], "left_anti")


def without_duplicates(lines: DataFrame) -> DataFrame:
    """Return each line once, however often it was read and from whichever file."""
    return lines.dropDuplicates([*LINE_KEY])


def quarantine(parsed: DataFrame, found: DataFrame, damaged: Collection[str] = ()) -> DataFrame:
    """Return bad lines, partial samples and damaged files, a row each.

    The columns are `reason`, `file`, `line`, `lines` (for how many the row stands; 0 for a file), and the start of the
    `hour` that it belongs to, in seconds since 1970: null where its folder names none, and for files.
    """
    line = F.substring(F.coalesce("text", F.to_json(F.struct(*FIELDS))), 1, MAX_CHARACTERS)
    bad = parsed.where(F.col("reason").isNotNull()).select("reason", "file", line, F.lit(1).cast("long"), "folder_hour")
    partial = found.where(~F.col("whole")).select(
        F.lit(PARTIAL_SAMPLE),
        F.lit(None).cast("string"),
        F.to_json(F.struct(*SAMPLE_KEY)),
        "lines",
        hour_of(F.col("ended")),
    )
    table = bad.union(partial)
    if damaged:
        path = F.explode(F.array(*(F.lit(path) for path in damaged)))
        files = found.sparkSession.range(1).select(
            F.lit(DAMAGED_FILE), path, F.lit(None).cast("string"), F.lit(0).cast("long"), F.lit(None).cast("long")
        )
        table = table.union(files)
    return table.toDF(*QUARANTINE_COLUMNS, "hour")
