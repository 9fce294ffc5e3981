# SPDX-License-Identifier: Apache-2.0
"""Finds damaged files by name, after a read has failed: files that break off, or are no gzip.

Spark can skip files that it cannot read, but does not say which, and takes a failing disk for a damaged file. So a day
is first read strictly. Where that fails for what is in a file, its files are read again, without being parsed: all
together, then each half by itself, and so on. With one damaged file that takes about one more reading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from weir.pipeline.errors import BuildError
from weir.pipeline.spark_errors import SPARK_ERRORS

# The words of Hadoop's decompressors. "EOFException" alone is not enough: a lost connection to HDFS is one too.
_DAMAGE: Final = re.compile(
    r"EOFException: Unexpected end of input stream|ZipException"
    r"|IOException: (not a gzip|gzip (data|header)|invalid |incorrect |too many length|unknown compression|header crc)"
)
# Reported after the last byte, when all lines were read. Any of them may be wrong, although the sample looks whole.
_ALTERED: Final = re.compile(r"java\.io\.IOException: (gzip stream CRC|stored gzip size).*")


def may_be_damage(error: Exception) -> bool:
    """Whether a read failed for what is in a file."""
    text = str(error)
    return bool(_DAMAGE.search(text) or _ALTERED.search(text))


def damaged_files(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """Return the damaged ones of `paths`.

    All samples in front of the damage are as they were written. BuildError where that is not sure.
    """
    if not paths:
        return []
    try:
        _read_through(spark, paths)
    except SPARK_ERRORS as error:
        if not may_be_damage(error):
            raise
        if len(paths) > 1:  # Spark does not say which: each half is read by itself
            middle = len(paths) // 2
            return [*damaged_files(spark, paths[:middle]), *damaged_files(spark, paths[middle:])]
        if altered := _ALTERED.search(str(error)):
            raise BuildError(
                f"{paths[0]} is not as it was written ({altered[0]}): move it away to build without it"
            ) from error
        return [paths[0]]
    return []


def _read_through(spark: SparkSession, paths: Sequence[str]) -> None:
    spark.read.text(list(paths)).groupBy().count().collect()
