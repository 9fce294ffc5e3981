# SPDX-License-Identifier: Apache-2.0
"""Tables that do not lie in a folder of this machine: read through Hadoop's API, here by its view of file systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.parquet import hours, write
from tests.quick_java import QUICK_JAVA
from weir.pipeline.tables import ALL_TABLES, BROKER_RATES, POINTER

pytestmark = pytest.mark.spark

DAYS = ("2026-11-02", "2026-11-03")
SECONDS = 600  # at the lowest priority, beside brokers


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two days; the last row of each is that of a run which readers are not to see."""
    for day in DAYS:
        folder = tmp_path / "tables" / f"date={day}"
        for run in ("one", "two"):
            for table in ALL_TABLES:
                write(folder / run, table, hours(1, 10e6) if table is BROKER_RATES else [])
        (folder / POINTER).write_text('{"run": "one", "samples": 1}')
    return tmp_path / "tables"


def _weir(tables: Path, *words: str) -> tuple[int, str, str]:
    """Run a command where viewfs://cluster/tables leads to the tables."""
    mounted = "spark.hadoop.fs.viewfs.mounttable.cluster.link./tables"
    (tables.parent / "spark-defaults.conf").write_text(f"{mounted} file://{tables}\n")
    own = {"SPARK_CONF_DIR": str(tables.parent), "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    command = [sys.executable, "-m", "weir", *words]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def test_tables_of_another_file_system_are_those_of_a_folder(tables: Path) -> None:
    """Of the report the range alone is copied; a plan reads all that there is."""
    words = ("report", "show", "--from", DAYS[0], "--to", DAYS[1], "--json", "--input")
    here, there = (_weir(tables, *words, address) for address in (str(tables), "viewfs://cluster/tables"))
    assert there == here
    assert here[0] == 0
    (tables / f"date={DAYS[1]}" / "two").rename(tables.parent / "two")
    ask = ("plan", "--size", "1TB", "--broker", "1", "--quota", "50MB", "--json", "--history")
    plans = [_weir(tables, *ask, address) for address in (str(tables), "viewfs://cluster/tables")]
    assert [status for status, *_ in plans] == [0, 0]
    assert plans[0][1].replace(str(tables), "viewfs://cluster/tables") == plans[1][1]


def test_tables_that_are_not_there_are_told_by_their_address(tables: Path) -> None:
    address = "viewfs://cluster/tables/none"
    status, _, error = _weir(tables, "report", "show", "--input", address)
    sentence = f"{address} has no table broker_rates: no broker_rates/*.parquet."
    assert (status, error) == (1, f"weir: --input: {sentence}\n")
