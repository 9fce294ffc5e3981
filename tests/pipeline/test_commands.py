# SPDX-License-Identifier: Apache-2.0
"""The job as people start it, in processes of its own but for a whole build by weir: by spark-submit, and killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.installed import Environment
from tests.pipeline.conftest import FOR_FEW_LINES, NO_PYTHON
from tests.pipeline.exported import DAY
from tests.pipeline.many_samples import independent_sums, table_sums
from tests.quick_java import QUICK_JAVA
from weir.cli.main import main
from weir.pipeline.day_tables import QUARANTINE, TABLES
from weir.pipeline.open_tables import published
from weir.pipeline.page.read import read_page
from weir.pipeline.page.write import page_of, summary

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
BUILD = ("report", "build", "--master", "local[2]")
DUCKDB = (sys.executable, "-m", "weir", "report", "build")
PYSPARK = Path(pyspark.__file__).parent
SUBMIT = (
    str(PYSPARK / "bin" / "spark-submit"),
    *("--master", "local[2]", "--conf", "spark.ui.enabled=false"),
)
JOB = ROOT / "pipeline" / "build.py"
SECONDS = 600
OWN_JAVA_OPTION = "-Dmine=kept"
RANGE = ("--from", f"{DAY}", "--to", f"{DAY + timedelta(days=1)}")


def _started(command: tuple[str, ...], samples: Path, tables: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a build, in a group of processes of its own: Spark's JVM is another process.

    With settings for few lines, where the test has made no others.
    """
    # The Spark of this process, which may be another than the one that is installed.
    environment = dict(os.environ)
    environment |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": NO_PYTHON}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{PYSPARK.parent}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
    settings = tables.parent / "spark-defaults.conf"
    if not settings.exists():
        wanted = FOR_FEW_LINES | {"spark.driver.extraJavaOptions": OWN_JAVA_OPTION}
        settings.write_text("".join(f"{name} {value}\n" for name, value in wanted.items()))
    environment |= {"SPARK_CONF_DIR": str(tables.parent), **variables}
    words = [*command, "--input", str(samples), "--output", str(tables), *RANGE]
    return subprocess.Popen(
        words,
        cwd=tables.parent,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _run(command: tuple[str, ...], samples: Path, tables: Path, **variables: str) -> tuple[int, list[str], list[str]]:
    """Run a build to its end; return its status and the lines it printed on stdout and on stderr."""
    with _started(command, samples, tables, **variables) as build:
        try:
            out, error = build.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(build.pid, signal.SIGKILL)
            raise
    return build.returncode, out.splitlines(), error.splitlines()


def _is_staging(tables: Path) -> bool:
    """Whether a table's file is there. Spark removes folders meanwhile, which stops `Path.glob`, and not `os.walk`."""
    files = (name for folder, _, names in os.walk(tables) if "date=" in folder for name in names)
    return any(name.startswith("part-") for name in files)


def _wait_until_staging(build: subprocess.Popen[str], tables: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not _is_staging(tables):
        assert build.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _rows(tables: Path, table: str, columns: str = "*") -> list[Any]:
    """A table's rows of the first day as they lie in its files."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        ((folder, facts),) = published(tables).items()
        files = sorted(map(str, (folder / facts["run"] / table).rglob("*.parquet")))
        if not files and table == "limits":
            return []  # no client was limited
        return connection.read_parquet(files, hive_partitioning=True).project(columns).fetchall()


def _contents(tables: Path) -> dict[str, list[Any]]:
    """All tables, their rows sorted by all columns; files without their folder."""
    columns = {QUARANTINE: "* REPLACE (parse_filename(file) AS file)"}
    return {table: sorted(_rows(tables, table, columns.get(table, "*")), key=repr) for table in TABLES}


class Killed(NamedTuple):
    """A build by weir, of few tables, whose JVM was killed as soon as a table's file was there."""

    tables: Path
    java: list[str]  # the JVM's command line
    status: int
    errors: list[str]
    seen: dict[Path, Any]  # what readers found afterwards


@pytest.fixture(scope="module")
def killed(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """SIGKILL, as the kernel kills a JVM for want of memory. What Python asks of it afterwards fails as well."""
    tables = tmp_path_factory.mktemp("built") / "tables"
    with _started((sys.executable, "-m", "tests.pipeline.light", *BUILD), samples, tables) as build:
        try:
            _wait_until_staging(build, tables)
            (jvm,) = Path(f"/proc/{build.pid}/task/{build.pid}/children").read_text().split()
            java = Path(f"/proc/{jvm}/cmdline").read_text().split("\0")
            os.kill(int(jvm), signal.SIGKILL)
            _, error = build.communicate(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(build.pid, signal.SIGKILL)
    return Killed(tables, java, build.returncode, error.splitlines(), published(tables))


def _built_by_weir(samples: Path, tables: Path, spark: SparkSession) -> list[str]:
    """Build on the session of all tests, for the killed build has shown how weir starts one; return what was said."""
    out, error = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr("weir.cli.report.start_spark", lambda *_: spark)
        patch.setattr("weir.pipeline.build.stop", lambda _: None)
        status = main([*BUILD, "--input", str(samples), "--output", str(tables), *RANGE])
    assert (status, error.getvalue()) == (0, "")
    return out.getvalue().splitlines()


def _built_by_spark_submit(samples: Path, tables: Path, folder: Path, wheel: Path) -> list[str]:
    """Build where there is the wheel and the job's own file, and no weir that is installed; return what was said.

    Spark compiles all queries, as it does by itself.
    """
    flat = folder / "flat"
    flat.mkdir()
    for file in samples.rglob("*.jsonl*"):
        shutil.copy(file, flat)
    (tables.parent / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 2\n")
    python = Environment(folder / "env").bin / "python"
    command = (*SUBMIT, "--py-files", str(wheel), str(shutil.copy(JOB, folder)))
    status, said, errors = _run(command, flat, tables, PYTHONPATH="", PYSPARK_PYTHON=str(python))
    assert status == 0, errors
    return said


@pytest.fixture(scope="module")
def built(
    samples: Path, killed: Killed, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, list[str]]:
    """The tables where a build was killed, and what was said: by spark-submit, on the oldest Spark by weir."""
    if pyspark.__version__.startswith("3."):
        said = _built_by_weir(samples, killed.tables, request.getfixturevalue("spark"))
    else:
        folder = tmp_path_factory.mktemp("submitted")
        said = _built_by_spark_submit(samples, killed.tables, folder, request.getfixturevalue("wheel"))
    return killed.tables, said


@pytest.mark.oldest_spark
def test_killed_jvm_is_one_sentence_and_readers_see_nothing(killed: Killed) -> None:
    """The JVM was started with the user's own options and weir's. All tests below are of the next run's tables."""
    assert {OWN_JAVA_OPTION, "-XX:+UseParallelGC"} <= set(killed.java)
    assert killed.status == 1
    (said,) = killed.errors
    assert said.startswith("weir: the tables cannot be built: ")
    assert killed.seen == {}


@pytest.mark.oldest_spark
def test_tables_have_the_sums_of_plain_python(samples: Path, built: tuple[Path, list[str]]) -> None:
    """What it says is on stdout; every sum is that of plain Python, to the last digit, read by DuckDB."""
    tables, said = built
    (day,) = said
    assert day.startswith("2026-11-02: 24 samples, ")
    assert day.endswith(", 1 lines quarantined (not_json)")
    wanted = independent_sums(samples)
    assert {name: len(sums) for name, sums in wanted.items()} == {
        "partition_rates": 300,
        "broker_rates": 18,
        "throttle_accuracy": 3,
        "moves": 18,
        "replica_lag": 9,
    }
    assert table_sums(tables) == wanted
    order = _rows(tables, "broker_rates", '"window", broker_id, side, window_start')
    assert order == sorted(order)


@pytest.mark.oldest_spark
def test_page_is_made_of_the_tables(built: tuple[Path, list[str]]) -> None:
    contents = read_page(built[0], None, None, 9)
    assert summary(contents, UTC).startswith("3 brokers, 450 partitions, 3 quotas, 9 moves, 2026-11-02 12:00 UTC to ")
    assert "topic-0" in page_of(contents, UTC)


def test_duckdb_builds_the_same_tables(samples: Path, built: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Without Java."""
    status, said, errors = _run(DUCKDB, samples, tmp_path / "tables", JAVA_HOME="/nowhere", PATH="")
    assert (status, errors) == (0, [])
    assert said == built[1]
    assert _contents(tmp_path / "tables") == _contents(built[0])


def test_missing_input_is_told_in_a_sentence(tmp_path: Path) -> None:
    """By DuckDB; by Spark in test_hdfs.py."""
    status, said, errors = _run((*DUCKDB, "--engine", "duckdb"), tmp_path / "nowhere", tmp_path / "tables")
    assert (status, said) == (1, [])
    assert errors[-1].startswith("weir: there is no ")
    assert not any(line.startswith(("Traceback", "\tat ")) for line in errors)
