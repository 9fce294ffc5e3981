"""How exactly quotas were kept: a pure function from exported lines to the table `throttle_accuracy`."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.rates import as_table
from pipeline.read import SAMPLE_KEY, Lines
from pipeline.tables import THROTTLE_ACCURACY

WINDOW: Final = 10
"""The length of the longer of the two windows, in seconds."""

_QUOTA: Final = ("broker_id", "side", "quota", "start_id")


def throttle_accuracy(lines: Lines) -> DataFrame:
    """Return a row for each span in which a quota stayed the same and no sample is missing.

    - The worst windows are those with the most bytes in 1 and in 10 whole seconds of the monotonic clock. Both are
      divided by what the quota allows in that time. A span shorter than 10 seconds is compared as a whole.
    - `seconds_left_out` is the length of the samples in which partitions were left out.
    - `bytes_left_out` is how many bytes fewer than the quota allows passed in these samples; 0 where nothing was left
      out.
    """
    spans = _spans(lines)
    span = [*_QUOTA, "span"]
    starved = F.col("left_out") > 0
    allowed = F.col("rate") * F.col("seconds")
    of_span = spans.groupBy(*span).agg(
        F.first("rate").alias("rate"),
        F.first("policy").alias("policy"),
        F.min(_utc("in_force_from_seconds")).alias("start"),
        F.max(_utc("in_force_until_seconds")).alias("end"),
        F.sum("micros_in_force").alias("micros"),
        F.sum("bytes").alias("bytes"),
        F.sum(F.when(starved, F.col("micros_in_force")).otherwise(0)).alias("starved_micros"),
        F.sum(F.when(starved, F.floor(allowed) - F.col("bytes")).otherwise(0)).alias("unused"),
    )
    joined = of_span.join(_worst(spans, span), span)
    seconds = F.col("micros") / 1e6
    quota = F.col("rate")
    return as_table(
        joined.select(
            F.col("quota").alias("quota_id"),
            "broker_id",
            "side",
            quota.alias("rate_bytes_per_second"),
            "policy",
            "start",
            "end",
            seconds.alias("seconds"),
            (F.col("bytes") / (quota * seconds)).alias("mean_over_quota"),
            (F.col("worst_1s") / quota).alias("worst_1s_over_quota"),
            (F.col("worst_10s") / (quota * F.least(F.lit(WINDOW), F.col("whole_seconds")))).alias(
                "worst_10s_over_quota"
            ),
            "seconds_over",
            (F.col("starved_micros") / 1e6).alias("seconds_left_out"),
            F.greatest(F.col("unused"), F.lit(0)).alias("bytes_left_out"),
        ),
        THROTTLE_ACCURACY,
    )


def _spans(lines: Lines) -> DataFrame:
    """Return the quota lines, each with the number of its `span`, its seconds in force, and its sample's `left_out`."""
    left_out = lines.links.groupBy(*SAMPLE_KEY, "side").agg(F.sum("left_out").alias("left_out"))
    kept = lines.quotas.where(F.col("mode").isNull())  # of the others, `rate` is no bound of the bytes
    quotas = kept.drop("left_out").join(left_out, [*SAMPLE_KEY, "side"], "left")
    in_order = Window.partitionBy(*_QUOTA).orderBy("in_force_from_seconds", "in_force_until_seconds")
    before = {name: F.lag(name).over(in_order) for name in ("rate", "policy", "in_force_until_seconds")}
    goes_on = (
        (F.col("rate") == before["rate"])
        & (F.col("policy") == before["policy"])
        & (F.col("in_force_from_seconds") == before["in_force_until_seconds"])
    )
    seconds = F.col("in_force_until_seconds") - F.col("in_force_from_seconds")
    return (
        quotas.withColumn("begins", F.when(goes_on, 0).otherwise(1))
        .withColumn("span", F.sum("begins").over(in_order))
        .withColumn("seconds", seconds)
        .withColumn("micros_in_force", F.round(seconds * 1e6).cast("long"))
    )


def _worst(spans: DataFrame, span: list[str]) -> DataFrame:
    """Return for each span the most bytes in 1 and in 10 seconds, its seconds over the quota, and its whole seconds."""
    seconds = (
        spans.select(*span, "rate", "first_second", F.posexplode("bytes_by_second").alias("offset", "bytes"))
        .groupBy(*span, (F.col("first_second") + F.col("offset")).alias("second"))
        .agg(F.sum("bytes").alias("bytes"), F.first("rate").alias("rate"))
    )
    last_ten = Window.partitionBy(*span).orderBy("second").rangeBetween(1 - WINDOW, 0)
    return (
        seconds.withColumn("bytes_10s", F.sum("bytes").over(last_ten))
        .groupBy(*span)
        .agg(
            F.max("bytes").alias("worst_1s"),
            F.max("bytes_10s").alias("worst_10s"),
            F.count(F.when(F.col("bytes") > F.col("rate"), 1)).alias("seconds_over"),
            F.count(F.lit(1)).alias("whole_seconds"),
        )
    )


def _utc(monotonic: str) -> Column:
    """Turn a time on the monotonic clock into a time of day, by the sample's end, which is known on both."""
    return F.timestamp_micros(
        F.col("ended_micros") - F.round((F.col("end_seconds") - F.col(monotonic)) * 1e6).cast("long")
    )
