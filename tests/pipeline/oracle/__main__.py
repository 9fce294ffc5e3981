"""A long run: python -m tests.pipeline.oracle --first 100 --runs 20."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.conftest import FOR_FEW_LINES, QUICK_JAVA
from tests.pipeline.oracle.run import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=10, help="how many seeds")
    parser.add_argument("--keep", type=Path, help="keep samples and tables in this folder")
    given = parser.parse_args()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .config(map=FOR_FEW_LINES)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    failed = 0
    for seed in range(given.first, given.first + given.runs):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = run(session, (given.keep or Path(folder)) / str(seed), seed)
        print(f"seed {seed}: {len(found)} differences, {time.monotonic() - begun:.1f} s", flush=True)
        print("\n".join(found), flush=True)
        failed += bool(found)
    session.stop()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
