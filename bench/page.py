# SPDX-License-Identifier: Apache-2.0
"""How long `weir report html` takes and how large its page is, over made-up tables: `python -m bench.page`.

The picture in docs/reports.md is of `--brokers 4 --partitions 160 --minutes 1440 --keep FOLDER`.
"""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, timedelta
from pathlib import Path

from bench.table import begin, parser, run
from tests.pipeline.page.made_up import DAY, make_tables
from weir.pipeline.page.read import read_page
from weir.pipeline.page.write import page_of

MOST_PAGE_MB = 4.0


def main() -> int:
    """Measure, and return 1 where a bound was missed."""
    options = parser("page", "Measure how long the page takes, and how large it is.")
    options.add_argument("--brokers", type=int, default=500)
    options.add_argument("--partitions", type=int, default=40_000)
    options.add_argument("--minutes", type=int, default=120, help="of the day")
    options.add_argument("--top", type=int, default=20)
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="leave tables/ and report.html there")
    asked, report = begin(options)
    with tempfile.TemporaryDirectory() as name:
        folder = asked.keep or Path(name)
        rows = make_tables(folder / "tables", asked.brokers, asked.partitions, asked.minutes)
        began = time.perf_counter()
        contents = read_page(folder / "tables", DAY, DAY + timedelta(minutes=asked.minutes), asked.top)
        read = time.perf_counter() - began
        page = page_of(contents, UTC)
        seconds = time.perf_counter() - began
        (folder / "report.html").write_text(page, encoding="utf-8")
    size = len(page.encode()) / 1e6
    title = f"{asked.brokers} brokers, {asked.partitions} partitions, {asked.minutes} minutes"
    report.table(title, "rows of tables | read, s .2 | all, s .2 | page, MB .2", [(rows, read, seconds, size)])
    report.bound("MB of page", size, most=MOST_PAGE_MB)
    return report.status


if __name__ == "__main__":
    run(main)
