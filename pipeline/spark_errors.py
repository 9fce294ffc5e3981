# SPDX-License-Identifier: Apache-2.0
"""Errors of Spark's, each told in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""Failures within Spark or Hadoop, or of their process, which may be killed when memory runs out."""

_NO_S3A: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem not found"
_HADOOP: Final = "hadoop-client-api-"


def first_line(error: Exception) -> str:
    """Return what one of SPARK_ERRORS says, without Java's stack trace."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    line = str(text).splitlines()[0]
    if _NO_S3A in line:
        wanted = f"--packages org.apache.hadoop:hadoop-aws:{_hadoop_version()} pyspark-shell"
        return f"s3a:// takes Hadoop's connector: set PYSPARK_SUBMIT_ARGS='{wanted}'"
    return line


def _hadoop_version() -> str:
    """The version of the Hadoop that PySpark brings along, which its connector has to be of."""
    jars = Path(pyspark.__file__).parent / "jars"
    return next((jar.stem.removeprefix(_HADOOP) for jar in jars.glob(f"{_HADOOP}*.jar")), "VERSION")
