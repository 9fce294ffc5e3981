# SPDX-License-Identifier: Apache-2.0
"""A page of a range, and two of its parts: their figures add up to those of the whole, wherever it is cut."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.pipeline.oracle.against import TABLES
from tests.pipeline.oracle.lines import read_day
from tests.pipeline.oracle.world import FIRST, HOUR, MIDNIGHT, world
from tests.pipeline.parquet import write
from weir.pipeline.page.contents import Contents
from weir.pipeline.page.read import read_page
from weir.pipeline.tables import ALL_TABLES

pytestmark = pytest.mark.long

UNTIL = FIRST + 2 * HOUR
LEAST = 48
"""Minutes of a range that is drawn by minute. In shorter ones the sample at an edge is divided."""


def _tables(folder: Path, seed: int) -> Path:
    """The tables of random samples as plain Python makes them. Of one side: of two the page takes one for each part."""
    made = world(seed, has_steps=False)
    for late in (False, True):
        made.write(folder / "samples", late=late)
    for day in (MIDNIGHT - timedelta(days=1), MIDNIGHT):
        read = read_day(folder / "samples", day.date())
        for table in ALL_TABLES:
            rows = [row for row in TABLES[table.name](read) if row.get("side", "leader") == "leader"]
            shown = [{name: _shown(row[name]) for name in table.columns} for row in rows]
            write(folder / "tables", table, shown, f"date={day:%Y-%m-%d}/part-0.parquet")
    return folder / "tables"


def _shown(value: object) -> object:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() if isinstance(value, datetime) else value


def _figures(contents: Contents) -> Counter[str]:
    """Bytes, and microseconds, by what they are of."""
    found = Counter[str]()
    brokers, partitions, slow = contents.brokers, contents.partitions, contents.slow
    found["replicated"], found["throttled"] = brokers.size, brokers.throttled_size
    found["partitions"], found["stuck"] = partitions.size, round(sum(of.stuck_seconds for of in slow.shown) * 1e6)
    for broker in brokers.shown:
        found[f"broker {broker.broker_id} throttled"] += broker.throttled.size
        found[f"broker {broker.broker_id} others"] += broker.unthrottled.size
    for partition in partitions.shown:
        found[f"partition {partition.topic}-{partition.partition}"] += partition.size
    for quota in contents.accuracy.shown:
        name = f"quota {quota.quota_id} of {quota.broker_id}, {quota.rate} {quota.policy}"
        found[f"{name}, seconds"] += round(quota.seconds * 1e6)
        found[f"{name}, over"] += round(quota.seconds_over * 1e6)
    for move in contents.moves.shown:
        found[f"move {move.replica}"] += move.size
        found[f"move {move.replica}, throttled"] += move.throttled_size
    return found


@pytest.mark.parametrize("seed", [504])
def test_parts_of_a_range_add_up_to_the_whole(tmp_path: Path, seed: int) -> None:
    tables = _tables(tmp_path, seed)
    whole = _figures(read_page(tables, FIRST, UNTIL, 100))
    assert len([name for name in whole if name.startswith("move")]) > 5
    for minutes in random.Random(seed).sample(range(LEAST, 120 - LEAST + 1), 3):
        cut = FIRST + timedelta(minutes=minutes)
        parts = _figures(read_page(tables, FIRST, cut, 100)) + _figures(read_page(tables, cut, UNTIL, 100))
        assert parts == +whole, cut
