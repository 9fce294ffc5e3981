"""One random world: built by the job, and held against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

from tests.pipeline.oracle.against import differences
from tests.pipeline.oracle.world import MIDNIGHT, world
from weir.pipeline.day_report import DayReport

DAY = timedelta(days=1)

Build = Callable[[Path, Path, datetime, datetime], Iterable[DayReport]]


def run(build: Build, folder: Path, seed: int) -> list[str]:
    """Build a world, where the seed is even before samples that come late and again, and return how tables differ."""
    samples, tables = folder / "samples", folder / "tables"
    made = world(seed)
    for late in (True,) if seed % 2 else (False, True):
        made.write(samples, late=late)
        list(build(samples, tables, MIDNIGHT - DAY, MIDNIGHT + DAY))
    return differences(samples, tables, [(MIDNIGHT - DAY).date(), MIDNIGHT.date()])
