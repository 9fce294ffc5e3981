"""Errors of Spark's, each told in one sentence."""

from __future__ import annotations

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""Failures within Spark or Hadoop, or of their process, which may be killed when memory runs out."""


def first_line(error: Exception) -> str:
    """Return what one of SPARK_ERRORS says, without Java's stack trace."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).splitlines()[0]
