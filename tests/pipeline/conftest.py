# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of the batch jobs, in a time zone that is not theirs."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.exported import DAY, write_lines
from tests.pipeline.many_samples import generate
from tests.quick_java import QUICK_JAVA
from weir.pipeline.days import Days
from weir.pipeline.duck import read as duck_read
from weir.pipeline.engine import DUCKDB, SPARK, on
from weir.pipeline.lines import Lines, by_kind, good_lines, parse
from weir.pipeline.open_tables import connect
from weir.pipeline.read import read_lines
from weir.pipeline.session import SPARK_SETTINGS, remember_names

ELSEWHERE = "Europe/Berlin"

FOR_FEW_LINES: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""To compile each query takes longer than to answer it. A build that is compiled: test_commands.py."""

NO_PYTHON = "/nowhere/python"
"""The Python of the executors: a job that asks for one fails, for they are to need nothing but Spark."""

OF_ALL_TESTS = f"{QUICK_JAVA} -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""The fast compiler would have 48 MB for its code, which are full after some tests, and then stop."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start Spark; it leaves its sockets to the garbage collector, which would be an error here."""
    for item in items:
        if item.nodeid.startswith("tests/pipeline/"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
            told = item.callspec.params if hasattr(item, "callspec") else {}
            if SPARK in (told.get("frames"), told.get("job")) or "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def _sockets_collected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have them collected where that is no error."""
    yield
    if "spark" not in request.fixturenames:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2]; the JVM and Spark's session have a time zone with daylight saving."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tests")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", f"-Duser.timezone={ELSEWHERE} {OF_ALL_TESTS}")
            .config("spark.sql.session.timeZone", ELSEWHERE)
            .config(map=SPARK_SETTINGS | FOR_FEW_LINES)
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        session.sparkContext.pythonExec = NO_PYTHON
        remember_names(session)
        yield session
        session.stop()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process in the same time zone."""
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", ELSEWHERE)
    time.tzset()
    yield
    if before is None:
        monkeypatch.delenv("TZ")
    time.tzset()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 3 brokers with 150 partitions each, for 80 s, and a line that is bad."""
    folder = tmp_path_factory.mktemp("exported") / "samples"
    generate(folder, brokers=3, partitions=150, samples=8, seed=2)
    (folder / f"date={DAY}" / "hour=12" / "bad.jsonl").write_text("no sample\n")
    return folder


class Frames:
    """Makes frames of exported lines, on Spark or on DuckDB."""

    def __init__(self, folder: Path, engine: SparkSession | duckdb.DuckDBPyConnection) -> None:
        self.folder = folder
        self.engine = engine

    def parsed(self, *texts: bytes) -> DataFrame:
        """What becomes of files with these lines, that lie in no folder of a day."""
        for number, text in enumerate(texts):
            write_lines(self.folder / f"{number}.jsonl.gz", text)
        if isinstance(self.engine, SparkSession):
            return parse(read_lines(self.engine, str(self.folder), Days.of(DAY)))
        lines: Any = duck_read.read_lines(self.engine, self.folder, Days.of(DAY))[0]
        parsed: Any = parse(lines)
        return parsed.kept()  # type: ignore[no-any-return]

    def good(self, *texts: bytes) -> DataFrame:
        return good_lines(self.parsed(*texts))

    def lines(self, *texts: bytes) -> Lines:
        return by_kind(self.good(*texts))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of tables run on DuckDB, and those marked `oldest_spark` on Spark, too: the oracle judges both."""
    on_spark = [pytest.param(SPARK, id="spark")] if any(metafunc.definition.iter_markers("oldest_spark")) else []
    engines = [pytest.param(DUCKDB, id="duckdb", marks=pytest.mark.long), *on_spark]
    told = {name for mark in metafunc.definition.iter_markers("parametrize") for name in [mark.args[0]]}
    for name in ("frames", "job"):
        if name in metafunc.fixturenames and name not in told:
            metafunc.parametrize(name, engines, indirect=True)


@pytest.fixture
def frames(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Frames]:
    with on(request.param):
        if request.param == SPARK:
            spark = request.getfixturevalue("spark")
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            yield Frames(tmp_path / "samples", spark)
        else:
            with connect() as connection:
                yield Frames(tmp_path / "samples", connection)
