"""What ends a job, told in a sentence."""

from __future__ import annotations

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""What fails within Spark or Hadoop, or with their process: that may be killed for want of memory."""


class BuildError(Exception):
    """Tables that cannot be built; its text is a sentence without the full stop."""


def first_line(error: Exception) -> str:
    """Return what one of SPARK_ERRORS says, without the stack of Java."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).splitlines()[0]
