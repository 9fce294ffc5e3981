# SPDX-License-Identifier: Apache-2.0
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


def run(build: Build, folder: Path, seed: int, *, early: bool, days: int = 2) -> list[str]:
    """Build a world and return how its tables differ; `early`: before the samples that come late, too.

    The last of its two days is built, or both.
    """
    first = MIDNIGHT - (days - 1) * DAY
    samples, tables = folder / "samples", folder / "tables"
    made = world(seed)
    for late in (False, True):
        made.write(samples, late=late)
        if early or late:
            list(build(samples, tables, first, MIDNIGHT + DAY))
    return differences(samples, tables, [(first + number * DAY).date() for number in range(days)])
