# SPDX-License-Identifier: Apache-2.0
"""How exactly quotas were kept: pure functions from exported lines to `throttle_accuracy` and `throttle_minutes`."""

from __future__ import annotations

from typing import Final

from weir.pipeline.engine import Column, DataFrame, F, Window
from weir.pipeline.lines import SAMPLE_KEY, Lines
from weir.pipeline.rates import as_table
from weir.pipeline.tables import THROTTLE_ACCURACY, THROTTLE_MINUTES, WINDOW_SECONDS

WINDOW: Final = 10
"""The length of the longer of the two windows, in seconds."""

_QUOTA: Final = ("broker_id", "side", "quota", "start_id")
_SPAN: Final = (*_QUOTA, "span")
_OF_LINES: Final = (
    *("side", "quota", "rate", "policy", "ended", "ended_micros", "end_seconds"),
    *("in_force_from_seconds", "in_force_until_seconds", "bytes", "first_second", "bytes_by_second"),
)
_MINUTE: Final = WINDOW_SECONDS["minute"]


def quotas_in_force(lines: Lines) -> DataFrame:
    """Return the quota lines that the tables are made of, each with its sample's `left_out` on its side."""
    left_out = lines.links.groupBy(*SAMPLE_KEY, "side").agg(F.sum("left_out").alias("left_out"))
    kept = lines.quotas.where(F.col("mode").isNull())  # of the others, `rate` is no bound of the bytes
    return kept.select(*SAMPLE_KEY, *_OF_LINES).join(left_out, [*SAMPLE_KEY, "side"], "left")


def minutes_in_force(quotas: DataFrame) -> DataFrame:
    """Return a row for each minute in which samples of a span ended, of which both tables are made.

    - `quotas` is as `quotas_in_force` gives it. In a span a quota stayed the same, and no sample is missing.
    - A second that two samples tell of belongs to the later one's minute, and 10 seconds belong to that of their last
      one.
    """
    spans = _spans(quotas)
    minute = [*_SPAN, "minute"]
    return _sums(spans, *minute).join(_worst(_seconds(spans), *minute), minute, "left")


def throttle_accuracy(minutes: DataFrame) -> DataFrame:
    """Return a row for each span; `minutes` is as `minutes_in_force` gives it.

    - The worst windows are those with the most bytes in 1 and in 10 whole seconds of the monotonic clock. Both are
      divided by what the quota allows in that time. A span shorter than 10 seconds is compared as a whole.
    - `seconds_left_out` is the length of the samples in which partitions were left out.
    - `bytes_left_out` is how many bytes fewer than the quota allows passed in these samples; 0 where nothing was left
      out.
    """
    spans = minutes.groupBy(*_SPAN).agg(
        *(F.first(name).alias(name) for name in ("rate", "policy")),
        F.min("start").alias("start"),
        F.max("end").alias("end"),
        *(F.sum(name).alias(name) for name in ("micros", "bytes", "starved_micros", "unused")),
        *(F.max(name).alias(name) for name in ("worst_1s", "worst_10s")),
        *(F.sum(name).alias(name) for name in ("seconds_over", "whole_seconds")),
    )
    told = spans.where(F.col("whole_seconds").isNotNull()).withColumns(_ratios(F.col("whole_seconds")))
    return as_table(told.withColumn("bytes_left_out", F.greatest(F.col("unused"), F.lit(0))), THROTTLE_ACCURACY)


def throttle_minutes(minutes: DataFrame) -> DataFrame:
    """Return a row for each row of `throttle_accuracy` and minute; `minutes` is as `minutes_in_force` gives it.

    The worst of a span's minutes is the worst of the span, and all other figures add up to the span's.
    """
    of_span = Window.partitionBy(*_SPAN)
    told = minutes.withColumns(
        {"start": F.min("start").over(of_span), "length": F.sum("whole_seconds").over(of_span)}
    ).where(F.col("length").isNotNull())
    return as_table(
        told.withColumns(_ratios(F.col("length"))).withColumns(
            {
                "seconds_over": F.coalesce("seconds_over", F.lit(0)),
                "bytes_left_out": F.col("unused"),
                "window_start": F.timestamp_seconds("minute"),
            }
        ),
        THROTTLE_MINUTES,
    )


def _sums(spans: DataFrame, *keys: str) -> DataFrame:
    starved = F.col("left_out") > 0
    allowed = F.col("rate") * F.col("seconds")
    return spans.groupBy(*keys).agg(
        F.first("rate").alias("rate"),
        F.first("policy").alias("policy"),
        F.min(_utc("in_force_from_seconds")).alias("start"),
        F.max(_utc("in_force_until_seconds")).alias("end"),
        F.sum("micros_in_force").alias("micros"),
        F.sum("bytes").alias("bytes"),
        F.sum(F.when(starved, F.col("micros_in_force")).otherwise(0)).alias("starved_micros"),
        F.sum(F.when(starved, F.floor(allowed) - F.col("bytes")).otherwise(0)).alias("unused"),
    )


def _ratios(whole_seconds: Column) -> dict[str, Column]:
    """Return the columns that are named otherwise, or divided, in the tables; `whole_seconds` is a span's length."""
    seconds, rate, quota = F.col("micros") / 1e6, F.col("rate"), F.nullif(F.col("rate"), F.lit(0))
    return {
        "quota_id": F.col("quota"),
        "rate_bytes_per_second": rate,
        "seconds": seconds,
        "mean_over_quota": F.col("bytes") / (quota * seconds),
        "worst_1s_over_quota": F.col("worst_1s") / quota,
        "worst_10s_over_quota": F.col("worst_10s") / (quota * F.least(F.lit(WINDOW), whole_seconds)),
        "seconds_left_out": F.col("starved_micros") / 1e6,
    }


def _spans(quotas: DataFrame) -> DataFrame:
    """Return the quota lines, each with the number of its `span` and its seconds in force."""
    in_order = Window.partitionBy(*_QUOTA).orderBy("in_force_from_seconds", "in_force_until_seconds")
    before = {name: F.lag(name).over(in_order) for name in ("rate", "policy", "in_force_until_seconds")}
    goes_on = (
        (F.col("rate") == before["rate"])
        & (F.col("policy") == before["policy"])
        & (F.col("in_force_from_seconds") == before["in_force_until_seconds"])
    )
    seconds = F.col("in_force_until_seconds") - F.col("in_force_from_seconds")
    return (
        quotas.withColumn("minute", F.col("ended") - F.col("ended") % _MINUTE)
        .withColumn("begins", F.when(goes_on, 0).otherwise(1))
        .withColumn("span", F.sum("begins").over(in_order))
        .withColumn("seconds", seconds)
        .withColumn("micros_in_force", F.round(seconds * 1e6).cast("long"))
    )


def _seconds(spans: DataFrame) -> DataFrame:
    """Return the bytes of each span's whole seconds, and of the 10 that end with each."""
    seconds = (
        spans.select(*_SPAN, "rate", "minute", "first_second", F.posexplode("bytes_by_second").alias("offset", "bytes"))
        .groupBy(*_SPAN, (F.col("first_second") + F.col("offset")).alias("second"))
        .agg(F.sum("bytes").alias("bytes"), F.first("rate").alias("rate"), F.max("minute").alias("minute"))
    )
    last_ten = Window.partitionBy(*_SPAN).orderBy("second").rangeBetween(1 - WINDOW, 0)
    return seconds.withColumn("bytes_10s", F.sum("bytes").over(last_ten))


def _worst(seconds: DataFrame, *keys: str) -> DataFrame:
    """Return the most bytes in 1 and in 10 seconds, the seconds over the quota, and all seconds."""
    return seconds.groupBy(*keys).agg(
        F.max("bytes").alias("worst_1s"),
        F.max("bytes_10s").alias("worst_10s"),
        F.count(F.when(F.col("bytes") > F.col("rate"), 1)).alias("seconds_over"),
        F.count(F.lit(1)).alias("whole_seconds"),
    )


def _utc(monotonic: str) -> Column:
    """Turn a time on the monotonic clock into a time of day, by the sample's end, which is known on both."""
    return F.timestamp_micros(
        F.col("ended_micros") - F.round((F.col("end_seconds") - F.col(monotonic)) * 1e6).cast("long")
    )
