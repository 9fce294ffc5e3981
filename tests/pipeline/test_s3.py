# SPDX-License-Identifier: Apache-2.0
"""Tables on S3: built there from samples that are there, and read there for a page, for answers and for a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyspark
import pytest

from tests.pipeline.conftest import FOR_FEW_LINES
from tests.pipeline.exported import DAY
from tests.pipeline.made_s3 import MadeS3, made_s3
from tests.quick_java import QUICK_JAVA
from weir.lab.errors import LabError
from weir.lab.jars import ensure
from weir.pipeline.duck.build import build

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SECONDS = 600
(HADOOP,) = (
    jar.stem.rpartition("-")[2] for jar in (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*")
)
RANGE = ("--from", f"{DAY}", "--to", f"{DAY + timedelta(days=1)}")
PLAN = "plan --size 100GB --move-ratio 0.1 --network 10Gb/s --within 8h --json --history"


@pytest.fixture
def s3() -> Iterator[MadeS3]:
    with made_s3() as made:
        yield made


@pytest.fixture(scope="module")
def jars() -> str:
    """Those of Hadoop's s3a, as Spark names them."""
    try:
        return ",".join(map(str, ensure("spark-s3")))
    except LabError as error:
        pytest.skip(f"Hadoop's s3a is not there: {error}")


def _run(folder: Path, s3: MadeS3, jars: str, *words: str) -> tuple[int, str, str]:
    settings = FOR_FEW_LINES | {
        "spark.jars": jars,
        "spark.hadoop.fs.s3a.endpoint": s3.address,
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": "secret",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    environment = {
        "PYTHONPATH": str(ROOT),
        "SPARK_CONF_DIR": str(folder),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    weir = (sys.executable, "-m", "weir")
    ended = subprocess.run(
        [*weir, *words], env=os.environ | environment, cwd=folder, capture_output=True, text=True, timeout=SECONDS
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_tables_on_s3_are_built_and_read_there(s3: MadeS3, jars: str, samples: Path, tmp_path: Path) -> None:
    """The answers, the page and the plan are those of tables in a folder."""
    for file in samples.rglob("*"):
        if file.is_file():
            s3.objects[f"bucket/samples/{file.relative_to(samples)}"] = file.read_bytes()
    status, said, errors = _run(
        tmp_path,
        s3,
        jars,
        "report",
        "build",
        "--input",
        "s3a://bucket/samples",
        "--output",
        "s3a://bucket/tables",
        *RANGE,
    )
    assert (status, errors) == (0, "")
    here = tmp_path / "tables"
    (report,) = build(samples, here, DAY, DAY + timedelta(days=1))
    assert said == f"{report.sentence()}\n"
    found = [name for name in s3.objects if name.startswith("bucket/tables/")]
    assert f"bucket/tables/date={DAY}/current.json" in found
    assert not [name for name in found if "_temporary" in name or "/_weir/" in name]
    for of in (["report", "show", "--json", *RANGE, "--input"], PLAN.split()):
        answered = {}
        for tables in ("s3a://bucket/tables", str(here)):
            status, said, errors = _run(tmp_path, s3, jars, *of, tables)
            assert status == 0, errors
            answered[tables] = json.loads(said.replace(tables, "TABLES"))
            answered[tables].get("figures", {}).pop("done_at", None)  # counted from now
        assert answered["s3a://bucket/tables"] == answered[str(here)]
    status, said, errors = _run(
        tmp_path, s3, jars, "report", "html", "--input", "s3a://bucket/tables", "--output", "page.html"
    )
    assert status == 0, errors
    assert "Did the throttle protect my clients?" in (tmp_path / "page.html").read_text()


def test_tables_that_are_not_on_s3_are_named(s3: MadeS3, jars: str, tmp_path: Path) -> None:
    status, _, errors = _run(tmp_path, s3, jars, "report", "show", "--input", "s3a://bucket/nowhere")
    sentence = "weir: --input: s3a://bucket/nowhere has no table broker_rates: no broker_rates/*.parquet."
    assert (status, errors.splitlines()[-1]) == (1, sentence)


def test_without_the_connector_of_s3_it_is_said_what_to_set(s3: MadeS3, tmp_path: Path) -> None:
    status, _, errors = _run(tmp_path, s3, "", "report", "show", "--input", "s3a://bucket/tables")
    assert (status, errors.splitlines()[-1]) == (
        1,
        "weir: s3a://bucket/tables cannot be read: s3a:// takes Hadoop's connector: set PYSPARK_SUBMIT_ARGS='--packages"
        f" org.apache.hadoop:hadoop-aws:{HADOOP} pyspark-shell'.",
    )
