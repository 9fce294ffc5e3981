# SPDX-License-Identifier: Apache-2.0
"""What clients with limits did, by minute and by hour: a pure function from exported lines to a table."""

from __future__ import annotations

from weir.pipeline.engine import DataFrame, F
from weir.pipeline.lines import Lines
from weir.pipeline.rates import as_table, coverage
from weir.pipeline.tables import LIMITS, WINDOW_SECONDS


def limits(lines: Lines) -> DataFrame:
    """Return a row for each limited client and window, over all brokers.

    - The mean is over the seconds in which a broker's sidecar took samples, and is summed over brokers.
    - The highest second is the greatest that one broker saw: the brokers' seconds do not begin together.
    - The throttled ratio is that of the broker at which it was highest: a client may wait at several at once.
    - Of a limit that was changed, the highest is told, and the entry that comes last in the alphabet.
    """
    minutes, hours = (_of_brokers(lines.limits, *window) for window in WINDOW_SECONDS.items())
    covered = minutes.union(hours).join(F.broadcast(coverage(lines.ends)), ["broker_id", "window", "window_start"])
    named = {name: F.max(name).alias(name) for name in ("role", "connector", "task", "entry", "limit_group")}
    found = covered.groupBy("window", F.timestamp_seconds("window_start").alias("window_start"), "client_id").agg(
        *named.values(),
        F.max("record_rate_limit").alias("record_rate_limit"),
        F.sum("records").alias("records"),
        F.sum(F.floor(F.col("records") * 1e9 / F.col("micros") + 0.5)).alias("thousandths"),
        F.max("most").alias("max_records_per_second"),
        F.least(F.lit(1.0), F.max(F.col("waited") / F.col("micros"))).alias("throttled_ratio"),
    )
    return as_table(found.withColumn("mean_records_per_second", F.col("thousandths") / 1000), LIMITS)


def _of_brokers(lines: DataFrame, window: str, seconds: int) -> DataFrame:
    start = F.col("ended") - F.col("ended") % seconds
    names = ("role", "connector", "task", "entry", "limit_group", "record_rate_limit")
    placed = lines.withColumns({"window": F.lit(window), "window_start": start})
    return placed.groupBy("broker_id", "client_id", "window", "window_start").agg(
        *(F.max(name).alias(name) for name in names),
        F.sum("records").alias("records"),
        F.max("record_rate_max").alias("most"),
        # whole microseconds: their sum does not depend on their order
        F.sum(F.floor(F.col("throttled_ratio") * F.col("micros") + 0.5)).alias("waited"),
    )
