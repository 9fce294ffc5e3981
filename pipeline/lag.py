"""Replica lag: a pure function from exported lines to the table."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.behind import OUT_OF_SYNC_SECONDS, behind_spans
from pipeline.rates import as_table
from pipeline.tables import REPLICA_LAG


def replica_lag(lines: DataFrame) -> DataFrame:
    """Return a row for each span in which a replica was out of sync; see `behind_spans`."""
    seconds = (F.unix_micros("end") - F.unix_micros("start")) / 1e6
    spans = behind_spans(lines).where(F.col("max_lag_seconds") > OUT_OF_SYNC_SECONDS)
    return as_table(spans.withColumn("seconds_to_in_sync", seconds), REPLICA_LAG)
