"""What each broker moved by sample: a pure function from exported lines to the table `broker_samples`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.pipeline.rates import as_table
from weir.pipeline.read import SAMPLE_KEY, Lines
from weir.pipeline.tables import BROKER_SAMPLES

_BYTES = ("bytes_throttled", "bytes_unthrottled")


def broker_samples(lines: Lines) -> DataFrame:
    """Return two rows for each sample, one a side: of 0 bytes where the broker had no connection."""
    of_side = [*SAMPLE_KEY, "side"]
    moved = lines.links.groupBy(*of_side).agg(*(F.sum(name).alias(name) for name in _BYTES))
    sides = F.explode(F.array(F.lit("leader"), F.lit("follower"))).alias("side")
    table = (
        lines.ends.select(*SAMPLE_KEY, "ended_micros", "micros", sides)
        .join(moved, of_side, "left")
        .fillna(0, [*_BYTES])
        .withColumn("start", F.timestamp_micros(F.col("ended_micros") - F.col("micros")))
        .withColumn("end", F.timestamp_micros("ended_micros"))
    )
    return as_table(table, BROKER_SAMPLES)
