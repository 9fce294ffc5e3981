"""One random world: built by the job, and held against the oracle."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.oracle.against import differences
from tests.pipeline.oracle.world import FIRST, HOUR, MIDNIGHT, world
from weir.pipeline.build import build

DAY = timedelta(days=1)


def run(spark: SparkSession, folder: Path, seed: int) -> list[str]:
    """Build a world, where the seed is even by hours in any order, and return how the tables differ."""
    by_hours = seed % 2 == 0
    samples, tables = folder / "samples", folder / "tables"
    made = world(seed, has_steps=not by_hours)
    made.write(samples, late=False)
    if by_hours:
        numbers = random.Random(seed)
        first = FIRST.replace(minute=0)
        # the last hour has no samples, but its folder may have bad lines
        last = first + 4 * HOUR
        parts = [(first, first + HOUR), (first + HOUR, last)]
        for since, until in numbers.sample(parts, len(parts)):
            list(build(spark, str(samples), str(tables), since, until))
        made.write(samples, late=True)
        list(build(spark, str(samples), str(tables), first, last))
    else:
        made.write(samples, late=True)
        list(build(spark, str(samples), str(tables), MIDNIGHT - DAY, MIDNIGHT + DAY))
    return differences(samples, tables, [(MIDNIGHT - DAY).date(), MIDNIGHT.date()])
