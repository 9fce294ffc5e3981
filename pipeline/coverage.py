# SPDX-License-Identifier: Apache-2.0
"""What was sampled: pure functions from samples and link lines to the tables `coverage` and `absences`."""

from __future__ import annotations

from typing import Final

from weir.pipeline.engine import DataFrame, F, Window
from weir.pipeline.lines import SAMPLE_KEY, Lines
from weir.pipeline.rates import as_table
from weir.pipeline.tables import ABSENCES, COVERAGE

_PROCESS: Final = ("broker_id", "start_id")


def coverage_by_minute(found: DataFrame) -> DataFrame:
    """Return a row for each broker and minute in which samples ended, or before which some are missing.

    `found` is the result of `samples`. Missing are those whose numbers lie between two others' of the same process.
    """
    before = F.lag("sequence").over(Window.partitionBy(*_PROCESS).orderBy("sequence"))
    is_whole = F.col("whole")
    table = (
        found.withColumn("missing", F.coalesce(F.col("sequence") - before - 1, F.lit(0)))
        .groupBy("broker_id", F.timestamp_seconds(F.col("ended") - F.col("ended") % 60).alias("window_start"))
        .agg(
            F.count(F.when(is_whole, 1)).alias("samples"),
            (F.sum(F.when(is_whole, F.col("micros")).otherwise(0)) / 1e6).alias("seconds"),
            F.sum("missing").alias("missing"),
            F.count(F.when(~is_whole, 1)).alias("quarantined"),
        )
    )
    return as_table(table, COVERAGE)


def links_of_leaders(lines: Lines) -> DataFrame:
    """Return the links that leaders told of; `away_seconds` is null where the follower had a connection."""
    links = lines.links.where(F.col("side") == "leader")
    return links.select(*SAMPLE_KEY, "peer", "ended", "ended_micros", "away_seconds")


def absences(links: DataFrame) -> DataFrame:
    """Return a row for each span in which a follower had no connection with a leader that it fetched from before.

    `links` is as `links_of_leaders` gives it.
    """
    in_order = Window.partitionBy(*_PROCESS, "peer").orderBy("sequence")
    links = links.withColumn("away", F.col("away_seconds").isNotNull())
    was_away = F.coalesce(F.lag("away").over(in_order), F.lit(False))
    spans = (
        links.withColumn("was_away", was_away)
        .withColumn("span", F.sum(F.when(F.col("away") & ~F.col("was_away"), 1).otherwise(0)).over(in_order))
        .where(F.col("away") | F.col("was_away"))
    )
    since = F.col("ended_micros") - F.round(F.col("away_seconds") * 1e6).cast("long")
    of_span = spans.groupBy(*_PROCESS, "peer", "span").agg(
        F.timestamp_micros(F.min(since)).alias("start"),
        F.timestamp_micros(F.max(F.when(~F.col("away"), F.col("ended_micros")))).alias("end"),
        F.timestamp_micros(F.max("ended_micros")).alias("seen_until"),
    )
    return as_table(of_span.withColumnRenamed("peer", "replica"), ABSENCES)
