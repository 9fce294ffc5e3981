# SPDX-License-Identifier: Apache-2.0
"""`weir report build` as people start it on a topic, with Spark's connector."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import duckdb

from tests.quick_java import QUICK_JAVA
from weir.lab.jars import ensure

FEW = ("wholeStage=false", "factoryMode=NO_CODEGEN")
"""To compile each query takes longer than to answer it."""


def build(source: str, tables: Path, first: str, last: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Build the tables of the days from `first` to `last`, and return how that ended and what it said."""
    connector = ",".join(str(jar) for jar in ensure("spark-kafka"))
    compiled = " ".join(f"--conf spark.sql.codegen.{setting}" for setting in FEW)
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": f"--jars {connector} {compiled} --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    period = ("--from", first, "--to", f"{date.fromisoformat(last) + timedelta(days=1)}")
    command = [sys.executable, "-m", "weir", "report", "build", "--input", source, "--output", str(tables), *period]
    return subprocess.run([*command, *more], env=environment, capture_output=True, text=True, timeout=300, check=False)


def partition_bytes(tables: Path) -> list[tuple[object, ...]]:
    """The bytes of each partition, by window and side."""
    with duckdb.connect(":memory:") as connection:
        rates = f"read_parquet('{tables}/date=*/*/partition_rates/*/*.parquet', hive_partitioning=true)"
        columns = '"window", epoch(window_start), side, topic, partition, bytes'
        return connection.execute(f"SELECT {columns} FROM {rates} ORDER BY ALL").fetchall()  # noqa: S608 - own folder
