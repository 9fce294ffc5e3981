# SPDX-License-Identifier: Apache-2.0
"""Which settings a session has, in processes of its own: by weir's way, and by spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import SparkSession, functions

from tests.quick_java import QUICK_JAVA

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
ASKED = (
    *("spark.sql.codegen.cache.maxEntries", "spark.sql.shuffle.partitions", "spark.locality.wait", "spark.master"),
    *("spark.driver.host", "spark.driver.bindAddress"),
)
SPARK = Path(pyspark.__file__).parent
LOOPBACK_AND_VERSION = ["127.0.0.1", "127.0.0.1", pyspark.__version__]
PRINT = f"""
import json
from weir.pipeline.session import open_session
spark = open_session({{master}})
print(json.dumps([*(spark.sparkContext.getConf().get(name) for name in {ASKED}), spark.version]))
spark.stop()
"""


def _settings(command: list[str], **environment: str) -> list[str | None]:
    # The Spark of this process, which may be another than the one that is installed.
    own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SPARK.parent}", "PYSPARK_PYTHON": sys.executable}
    own |= {"JAVA_TOOL_OPTIONS": QUICK_JAVA}
    said = subprocess.run(command, env=os.environ | own | environment, stdout=subprocess.PIPE, check=True, timeout=300)
    found: list[str | None] = json.loads(said.stdout)
    return found


def test_job_makes_only_settings_that_the_user_has_not_made() -> None:
    arguments = "--conf spark.sql.shuffle.partitions=3 --conf spark.ui.enabled=false pyspark-shell"
    found = _settings([sys.executable, "-c", PRINT.format(master='"local[2]"')], PYSPARK_SUBMIT_ARGS=arguments)
    assert found == ["1000", "3", "0s", "local[2]", *LOOPBACK_AND_VERSION]


@pytest.mark.oldest_spark
def test_session_of_spark_submit_has_them_too(tmp_path: Path) -> None:
    """Static ones too, which no session takes that is there already; and those of one machine on a local master."""
    script = tmp_path / "script.py"
    script.write_text(PRINT.format(master=""))
    submit = [str(SPARK / "bin" / "spark-submit"), "--conf", "spark.ui.enabled=false"]
    own = ["--master", "local[3]", "--conf", "spark.locality.wait=1s"]
    assert _settings([*submit, *own, str(script)]) == ["1000", "16", "1s", "local[3]", *LOOPBACK_AND_VERSION]


def test_column_is_asked_for_in_two_questions(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is such a function, and to call it. Spark's own way needs more, some of them slow."""
    asked: list[str] = []
    send = JavaClient.send_command

    def counted(client: Any, command: str, *of: Any, **more: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):  # what the collector finds meanwhile is given back
            asked.append(command)
        return send(client, command, *of, **more)

    functions.col("a")
    monkeypatch.setattr(JavaClient, "send_command", counted)
    column = functions.col("a")
    assert len(asked) == 2, asked
    asked.clear()
    column + 1
    assert len(asked) == 1, asked


def test_master_that_is_none_is_told_in_a_sentence() -> None:
    build = ("report", "build", "--input", "i", "--output", "o", "--from", "2026-11-02", "--to", "2026-11-03")
    command = [sys.executable, "-m", "weir", *build, "--master", "nowhere"]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("weir: Spark does not start: org.apache.spark.SparkException: ")


def test_spark_connect_is_told_in_a_sentence() -> None:
    build = ("report", "build", "--input", "i", "--output", "o", "--from", "2026-11-02", "--to", "2026-11-03")
    said = subprocess.run(
        [sys.executable, "-m", "weir", *build, "--engine", "spark"],
        cwd=ROOT,
        env={**os.environ, "SPARK_REMOTE": "sc://localhost:1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (said.returncode, said.stderr) == (
        1,
        "weir: the job does not run by Spark Connect: unset SPARK_REMOTE and name a master (--master, or"
        " spark-submit).\n",
    )
