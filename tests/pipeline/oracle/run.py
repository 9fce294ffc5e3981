"""One random world: built by the job, and held against the oracle."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.oracle.against import differences
from tests.pipeline.oracle.world import MIDNIGHT, world
from weir.pipeline.build import build

DAY = timedelta(days=1)


def run(spark: SparkSession, folder: Path, seed: int) -> list[str]:
    """Build a world, where the seed is even before samples that come late and again, and return how tables differ."""
    samples, tables = folder / "samples", folder / "tables"
    made = world(seed)
    for late in (True,) if seed % 2 else (False, True):
        made.write(samples, late=late)
        list(build(spark, str(samples), str(tables), MIDNIGHT - DAY, MIDNIGHT + DAY))
    return differences(samples, tables, [(MIDNIGHT - DAY).date(), MIDNIGHT.date()])
