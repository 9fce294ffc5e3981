# SPDX-License-Identifier: Apache-2.0
"""The end of the demo: the samples that its sidecars exported become a page, by `weir report`."""

from __future__ import annotations

import gzip
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from weir.lab.errors import LabError
from weir.samples.schema import PartitionLine, by_partition, decode_line

_MOST_SECONDS: Final = 180.0
_MOST_SHOWN: Final = 50  # more than the demo has partitions


def exported_bytes(samples: Path, topic: str) -> int:
    """Return a topic's bytes in whole batches, as exported by leaders, summed over finished files."""
    files = samples.glob("date=*/hour=*/*.jsonl.gz")
    lines = (decode_line(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines())
    return sum(
        line.bytes_complete
        for line in by_partition(lines)
        if isinstance(line, PartitionLine) and (line.side, line.topic) == ("leader", topic)
    )


def write_page(samples: Path, tables: Path, page: Path) -> None:
    """Build the tables from all exported samples and the page from the tables, with the commands that users have."""
    days = sorted(date.fromisoformat(folder.name.removeprefix("date=")) for folder in samples.glob("date=*"))
    if not days:
        raise LabError(f"The sidecars exported no samples to {samples}.")
    until = days[-1] + timedelta(days=1)
    _weir_report("build", "--input", samples, "--output", tables, "--from", days[0], "--to", until)
    _weir_report("html", "--input", tables, "--output", page, "--top", _MOST_SHOWN)


def _weir_report(*arguments: object) -> None:
    command = [sys.executable, "-m", "weir", "report", *map(str, arguments)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LabError(f"weir report {arguments[0]} did not end within {_MOST_SECONDS:g} s.") from None
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
        raise LabError(f"weir report {arguments[0]} failed: {said[-1]}")
