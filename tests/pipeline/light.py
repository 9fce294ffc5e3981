# SPDX-License-Identifier: Apache-2.0
"""A job of three tables, for tests of how tables are written, whatever is in them: the real ones take a while.

`python -m tests.pipeline.light report build ...` is weir with that job.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from pyspark.sql import DataFrame

from weir.cli.main import main
from weir.pipeline.day_tables import QUARANTINE
from weir.pipeline.engine import F
from weir.pipeline.lines import Lines, by_partition
from weir.pipeline.tables import MOVES, PARTITION_RATES, WINDOW_SECONDS

JOBS = ("weir.pipeline.build.day_tables", "weir.pipeline.duck.build.day_tables")
"""What `tables_of_day` takes the place of, on each engine."""


def tables_of_day(lines: Lines, _: object, bad: DataFrame, __: object, places: int) -> dict[str, DataFrame]:
    """Return `partition_rates` with nothing but bytes, by window, and `moves` with a number of lines."""
    windows = F.explode(F.array(*map(F.lit, WINDOW_SECONDS))).alias("window")
    moved = by_partition(lines.partitions, "bytes_unthrottled").select("partition", windows, "bytes_unthrottled")
    size = F.sum("bytes_unthrottled").alias("bytes")
    return {
        PARTITION_RATES.name: moved.repartition(places, "partition").groupBy("partition", "window").agg(size),
        MOVES.name: lines.partitions.groupBy().agg(F.count(F.lit(1)).alias("lines"), F.max("ended").alias("ended")),
        QUARANTINE: bad,
    }


if __name__ == "__main__":
    with patch(JOBS[0], tables_of_day):
        sys.exit(main())
