"""The tables against sums that plain Python makes of the same samples."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.many_samples import DAY, generate, independent_sums, table_sums
from weir.pipeline.build import build


def test_bytes_are_those_of_an_independent_computation(spark: SparkSession, tmp_path: Path) -> None:
    """4 brokers with 150 partitions each for 80 s: every sum is the same to the last digit."""
    samples, tables = tmp_path / "samples", tmp_path / "tables"
    generate(samples, brokers=4, partitions=150, samples=8, seed=1)
    (report,) = build(spark, str(samples), str(tables), DAY, DAY + timedelta(days=1))
    assert (report.samples, report.quarantined) == (32, {})
    wanted = independent_sums(samples)
    assert {name: len(sums) for name, sums in wanted.items()} == {
        "partition_rates": 300,
        "broker_rates": 24,
        "throttle_accuracy": 4,
        "moves": 24,
        "replica_lag": 12,
    }
    assert table_sums(spark, tables) == wanted
