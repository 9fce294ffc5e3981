# SPDX-License-Identifier: Apache-2.0
"""A long run: python -m tests.pipeline.oracle --first 100 --runs 20."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.conftest import FOR_FEW_LINES, OF_ALL_TESTS
from tests.pipeline.oracle.run import Build, run
from weir.pipeline.build import build
from weir.pipeline.duck.build import build as build_with_duckdb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=10, help="how many seeds")
    parser.add_argument("--keep", type=Path, help="keep samples and tables in this folder")
    parser.add_argument("--engine", choices=["spark", "duckdb"], default="duckdb")
    given = parser.parse_args()
    failed = 0
    with contextlib.ExitStack() as stack:
        job: Build = _on_spark(stack) if given.engine == "spark" else build_with_duckdb
        for seed in range(given.first, given.first + given.runs):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                found = run(job, (given.keep or Path(folder)) / str(seed), seed, early=seed % 2 == 0)
            print(f"seed {seed}: {len(found)} differences, {time.monotonic() - begun:.1f} s", flush=True)
            print("\n".join(found), flush=True)
            failed += bool(found)
    sys.exit(bool(failed))


def _on_spark(stack: contextlib.ExitStack) -> Build:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", OF_ALL_TESTS)
        .config(map=FOR_FEW_LINES)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    stack.callback(session.stop)
    return lambda samples, tables, *days: build(session, str(samples), str(tables), *days)


if __name__ == "__main__":
    main()
