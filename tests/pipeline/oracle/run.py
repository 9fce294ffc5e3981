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


def run(build: Build, folder: Path, seed: int, *, early: bool) -> list[str]:
    """Build a world and return how its tables differ; `early`: before the samples that come late, too."""
    samples, tables = folder / "samples", folder / "tables"
    made = world(seed)
    for late in (False, True):
        made.write(samples, late=late)
        if early or late:
            list(build(samples, tables, MIDNIGHT - DAY, MIDNIGHT + DAY))
    return differences(samples, tables, [(MIDNIGHT - DAY).date(), MIDNIGHT.date()])
