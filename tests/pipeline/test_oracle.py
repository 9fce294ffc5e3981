# SPDX-License-Identifier: Apache-2.0
"""All tables of random samples, held against plain Python that was written from the documentation.

WEIR_ORACLE_SEEDS=1,2,3 names other worlds than those that always run, the first on Spark too; for a long run there is
`python -m tests.pipeline.oracle --first 100 --runs 50`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.oracle.run import run
from weir.pipeline.build import build
from weir.pipeline.duck.build import build as build_with_duckdb

SEEDS = [int(seed) for seed in os.environ.get("WEIR_ORACLE_SEEDS", "2,3").split(",")]


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that spans go over the edges of many."""
    monkeypatch.setattr("weir.pipeline.behind_rows.SAMPLES", 50)


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_tables_are_those_of_plain_python(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The day that begins within two hours of samples: each further one takes Spark as long."""

    def on_spark(samples: Path, tables: Path, *days: Any) -> Any:
        return build(spark, str(samples), str(tables), *days)

    assert "\n".join(run(on_spark, tmp_path, seed, early=False, days=1)) == ""


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_tables_of_duckdb_are_those_of_plain_python(tmp_path: Path, seed: int) -> None:
    """Where the seed is even, they are built before samples that come late, too."""
    assert "\n".join(run(build_with_duckdb, tmp_path, seed, early=seed % 2 == 0)) == ""
