# SPDX-License-Identifier: Apache-2.0
"""The job with its input and its tables on HDFS: a name node and a data node of Hadoop's own, on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.pipeline.conftest import FOR_FEW_LINES
from tests.pipeline.exported import DAY
from tests.quick_java import QUICK_JAVA
from weir.lab.errors import LabError
from weir.lab.jars import ensure
from weir.lab.java import find_java
from weir.pipeline.day_tables import TABLES
from weir.pipeline.open_tables import published, table_folder

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
JARS = Path(pyspark.__file__).parent / "jars"
SECONDS = 600  # at the lowest priority, beside brokers
RANGE = ("--from", f"{DAY}", "--to", f"{DAY + timedelta(days=1)}")


class Hdfs:
    """A file system with one data node, which ends with this process at the latest."""

    def __init__(self, classpath: list[Path], folder: Path) -> None:
        port, self._process = launch_gateway(
            jarpath=str(next(JARS.glob("py4j-*.jar"))),
            classpath=os.pathsep.join(str(jar) for jar in [*classpath, *JARS.glob("*.jar")]),
            javaopts=["-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={folder}"],
            java_path=str(find_java()),
            die_on_exit=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        self._hadoop: Any = self._gateway.jvm.org.apache.hadoop
        settings = self._hadoop.conf.Configuration()
        settings.set("hdfs.minidfs.basedir", str(folder / "dfs"))
        self._cluster = self._hadoop.hdfs.MiniDFSCluster.Builder(settings).numDataNodes(1).build()
        self._cluster.waitActive()
        self.address = str(self._cluster.getURI().toString())
        self.files = self._cluster.getFileSystem()

    def path(self, name: str) -> Any:
        return self._hadoop.fs.Path(f"{self.address}/{name}")

    def put(self, local: Path, name: str) -> None:
        self.files.copyFromLocalFile(False, True, self._hadoop.fs.Path(str(local)), self.path(name))

    def get(self, name: str, local: Path) -> Path:
        self.files.copyToLocalFile(False, self.path(name), self._hadoop.fs.Path(str(local)))
        return local

    def names(self, name: str) -> list[str]:
        return [status.getPath().getName() for status in self.files.listStatus(self.path(name))]

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self._cluster.shutdown()
        self._gateway.shutdown()
        self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    try:
        jars = ensure("hadoop-minicluster")
    except LabError as error:
        pytest.skip(f"Hadoop's HDFS is not there: {error}")
    running = Hdfs(jars, tmp_path_factory.mktemp("hdfs"))
    yield running
    running.stop()


def _started(folder: Path, source: str, tables: str, **settings: str) -> subprocess.Popen[str]:
    """With Spark's adaptive execution, as it is by itself: its last stages wait for hosts of files.

    `settings` are Hadoop's, with _ for each dot.
    """
    wanted = FOR_FEW_LINES | {f"spark.hadoop.{name.replace('_', '.')}": value for name, value in settings.items()}
    wanted |= {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "16"}
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in wanted.items()))
    environment = {
        "PYTHONPATH": str(ROOT),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    weir = (sys.executable, "-m", "weir", "report", "build", "--master", "local[2]")
    return subprocess.Popen(
        [*weir, "--input", source, "--output", tables, *RANGE],
        env=os.environ | environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _run(folder: Path, source: str, tables: str, **settings: str) -> tuple[int, list[str], list[str]]:
    with _started(folder, source, tables, **settings) as build:
        try:
            out, error = build.communicate(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(build.pid, signal.SIGKILL)
    return build.returncode, out.splitlines(), error.splitlines()


def _contents(tables: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows, sorted; quarantined lines without the address of their file."""
    found = {}
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES:
            columns = "* EXCLUDE (file)" if table == "quarantine" else "*"
            runs = [table_folder(folder, facts, table) for folder, facts in published(tables).items()]
            files = [str(file) for run in runs for file in run.rglob("*.parquet")]
            # Spark writes no file of a table without rows whose windows have folders of their own
            rows = connection.read_parquet(files, hive_partitioning=True).select(columns).fetchall() if files else []
            found[table] = sorted(rows, key=repr)
    return found


def test_tables_on_hdfs_are_those_of_a_local_folder(hdfs: Hdfs, samples: Path, tmp_path: Path) -> None:
    """Built locally, and on HDFS: by a run that is killed amid writing, and twice more."""
    status, said, errors = _run(tmp_path, str(samples), str(tmp_path / "local"))
    assert status == 0, errors
    wanted = _contents(tmp_path / "local")
    hdfs.put(samples, "samples")
    on_hdfs = (tmp_path, f"{hdfs.address}/samples", f"{hdfs.address}/tables")
    with _started(*on_hdfs) as killed:
        try:
            _wait_for(hdfs, f"tables/date={DAY}", killed)
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
    for number in range(2):
        status, again, errors = _run(*on_hdfs)
        assert status == 0, errors
        assert again == said
        assert _contents(hdfs.get("tables", tmp_path / f"got-{number}")) == wanted


def test_file_on_hdfs_that_was_cut_short_is_named(hdfs: Hdfs, samples: Path, tmp_path: Path) -> None:
    folder = samples / f"date={DAY}" / "hour=12"
    file = next(folder.glob("broker-1-*"))
    whole = file.read_bytes()
    (tmp_path / file.name).write_bytes(whole[: len(whole) // 2])
    hdfs.put(tmp_path / file.name, f"cut/date={DAY}/hour=12/{file.name}")
    status, (said,), errors = _run(tmp_path, f"{hdfs.address}/cut", f"{hdfs.address}/of-cut")
    assert status == 0, errors
    assert said.endswith(f"{hdfs.address}/cut/date={DAY}/hour=12/{file.name} is damaged and was read in part")


def test_missing_path_is_named_with_the_file_system_looked_at(hdfs: Hdfs, tmp_path: Path) -> None:
    """A path without a scheme is looked for in the default file system."""
    status, _, errors = _run(tmp_path, "/nowhere", f"{hdfs.address}/of-nothing", fs_defaultFS=hdfs.address)
    assert (status, errors[-1]) == (1, f"weir: there is no {hdfs.address}/nowhere.")


def _wait_for(hdfs: Hdfs, name: str, build: subprocess.Popen[str]) -> None:
    """Wait until there is this."""
    deadline = time.monotonic() + SECONDS
    while not hdfs.files.exists(hdfs.path(name)):
        assert build.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
