"""Replica lag: a pure function from the spans in which replicas were behind to the table `replica_lag`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.pipeline.behind import OUT_OF_SYNC_SECONDS
from weir.pipeline.rates import as_table
from weir.pipeline.tables import REPLICA_LAG


def replica_lag(spans: DataFrame) -> DataFrame:
    """Return a row for each of `behind_spans` in which the replica was out of sync."""
    return as_table(spans.where(F.col("max_lag_seconds") > OUT_OF_SYNC_SECONDS), REPLICA_LAG)
