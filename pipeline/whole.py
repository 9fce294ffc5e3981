# SPDX-License-Identifier: Apache-2.0
"""Samples: which are whole, which lines are there twice, and what is quarantined. Pure functions from parsed lines."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import and_
from typing import Final

from weir.pipeline.days import DAY_SECONDS, HOUR_SECONDS
from weir.pipeline.engine import Column, DataFrame, F
from weir.pipeline.lines import FIELDS, MAX_CHARACTERS, SAMPLE_KEY
from weir.samples.schema import IntervalLine, LimitLine, Line, LinkLine, PartitionsLine, QuotaLine, kind_of

LINE_KEY: Final = (
    *("kind", *SAMPLE_KEY, "side", "peer", "topic", "block"),
    *("quota", "in_force_from_seconds", "client_id"),
)
"""The columns that identify a line (null where a kind lacks one). Two lines that agree in all of them are duplicates.
"""

PARTIAL_SAMPLE: Final = "partial_sample"
"""The reason that samples which are not whole are quarantined for."""

DAMAGED_FILE: Final = "damaged_file"
"""The reason that a damaged file is quarantined for."""

QUARANTINE_COLUMNS: Final = ("reason", "file", "line", "lines")

_OF_SAMPLE: Final = ("ended", "ended_micros", "end_seconds", "micros", "cluster_id")
_COUNTED: Final[tuple[type[Line], ...]] = (PartitionsLine, LinkLine, QuotaLine, LimitLine)


def samples(lines: DataFrame) -> DataFrame:
    """Return a row for each sample: its key, whether it is `whole`, and whether lines are there `twice`.

    `lines` and `partitions` are how many of these it has; the times are those of its lines, `cluster_id` that of its
    end.

    A sample is whole when it has its end, and as many partitions, links, quotas and limits as the end says. A line that
    is there twice counts once.
    """

    def count(kind: type[Line]) -> Column:
        return F.sum(F.when(F.col("kind") == kind_of(kind), F.col("size")).otherwise(0))

    told = ("partitions", "links", "quotas", "limits")
    size = F.when(F.col("columns").isNotNull(), F.size("columns.partition")).otherwise(1)
    once = (
        lines.withColumn("size", size)
        .groupBy(*SAMPLE_KEY, "kind", F.xxhash64(*LINE_KEY).alias("line"))
        .agg(
            F.count(F.lit(1)).alias("copies"),
            *(F.max(name).alias(name) for name in ("size", *told, *_OF_SAMPLE)),
        )
    )
    counted = once.groupBy(*SAMPLE_KEY).agg(
        F.sum("copies").alias("lines"),
        (F.max("copies") > 1).alias("twice"),
        *(F.max(name).alias(name) for name in _OF_SAMPLE),
        count(IntervalLine).alias("ends"),
        *(count(kind).alias(f"{name}_found") for name, kind in zip(told, _COUNTED, strict=True)),
        *(F.max(name).alias(name) for name in told),
    )
    is_whole = reduce(and_, (F.col(f"{name}_found") == F.col(name) for name in told)) & (F.col("ends") == 1)
    return counted.select(
        *SAMPLE_KEY,
        *_OF_SAMPLE,
        "lines",
        "partitions",
        F.coalesce(is_whole, F.lit(False)).alias("whole"),
        "twice",
    )


def processes(found: DataFrame) -> DataFrame:
    """Return a row for each start of a sidecar, with what its samples tell; `found` is the result of `samples`.

    `samples` are those that are whole, which ended up to `until_micros`, in the hours of the day `hours`. `missing` is
    how many numbers are missing in the sequence, in which partial samples count as present.
    """
    whole = F.col("whole")
    hour = F.floor(F.col("ended") % DAY_SECONDS / HOUR_SECONDS)
    return found.groupBy("broker_id", "start_id").agg(
        F.count(F.when(whole, 1)).alias("samples"),
        F.max(F.when(whole, F.col("ended_micros"))).alias("until_micros"),
        F.collect_set(F.when(whole, hour)).alias("hours"),
        (F.max("sequence") - F.min("sequence") + 1 - F.count(F.lit(1))).alias("missing"),
        F.coalesce(F.bool_or("twice"), F.lit(False)).alias("twice"),
        F.coalesce(F.sum("partitions"), F.lit(0)).alias("partitions"),
        F.collect_set("cluster_id").alias("clusters"),
    )


def without_partial(lines: DataFrame, found: DataFrame) -> DataFrame:
    """Return the lines of whole samples; `found` is the result of `samples`."""
    partial = found.where(~F.col("whole")).select(*SAMPLE_KEY)
    return lines.join(F.broadcast(partial), [*SAMPLE_KEY], "left_anti")


def without_duplicates(lines: DataFrame) -> DataFrame:
    """Return each line once, however often it was read and from whichever file."""
    return lines.dropDuplicates([*LINE_KEY])


def quarantine(parsed: DataFrame, found: DataFrame, damaged: Collection[str] = ()) -> DataFrame:
    """Return bad lines, partial samples and damaged files, a row each.

    The columns are `reason`, `file`, `line`, and `lines`: for how many the row stands; 0 for a file.
    """
    line = F.substring(F.coalesce("text", F.to_json(F.struct(*FIELDS))), 1, MAX_CHARACTERS)
    bad = parsed.where(F.col("reason").isNotNull()).select("reason", "file", line, F.lit(1).cast("long"))
    partial = found.where(~F.col("whole")).select(
        F.lit(PARTIAL_SAMPLE),
        F.lit(None).cast("string"),
        F.to_json(F.struct(*SAMPLE_KEY)),
        F.col("lines").cast("long"),
    )
    table = bad.union(partial)
    if damaged:
        path = F.explode(F.array(*(F.lit(path) for path in damaged)))
        one_row = found.groupBy().agg(F.count(F.lit(1)))
        files = one_row.select(F.lit(DAMAGED_FILE), path, F.lit(None).cast("string"), F.lit(0).cast("long"))
        table = table.union(files)
    return table.toDF(*QUARANTINE_COLUMNS)
