"""Finds damaged files by name, after a read has failed: files that break off, or are no gzip.

Spark can skip files that it cannot read, but does not say which, and takes a failing disk for a damaged file. So a day
is first read strictly. Only if that fails, its files are read one after the other, on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipeline.errors import BuildError, first_line

DAMAGED_FILE: Final = "damaged_file"
"""The reason that a damaged file is quarantined for."""

# The words of Hadoop's decompressors. "EOFException" alone is not enough: a lost connection to HDFS is one too.
_DAMAGE: Final = re.compile(
    r"EOFException: Unexpected end of input stream|ZipException"
    r"|IOException: (not a gzip|gzip (data|header)|invalid |incorrect |too many length|unknown compression|header crc)"
)
# Reported after the last byte, when all lines were read. Any of them may be wrong, although the sample looks whole.
_ALTERED: Final = re.compile(r"IOException: (gzip stream CRC|stored gzip size)")
_FOLDER: Final = re.compile(r"/date=(\d{4}-\d\d-\d\d)/")


def damaged_files(spark: SparkSession, paths: Iterable[str], day: date) -> list[str]:
    """Return the damaged ones of `paths`; where folders name days, only those around `day` are looked at.

    All samples in front of the damage are as they were written. BuildError where that is not sure, and where a file
    cannot be read for another reason: such a file may be whole.
    """
    about = {str(day + timedelta(days=days)) for days in (-1, 0, 1)}
    found = []
    for path in sorted(paths):
        folder = _FOLDER.search(path)
        if folder is not None and folder[1] not in about:
            continue
        try:
            _read_through(spark, path)
        except Py4JJavaError as error:
            said = first_line(error)
            if _ALTERED.search(said):
                raise BuildError(
                    f"{path} is not as it was written ({said}): move it away to build without it"
                ) from error
            if not _DAMAGE.search(said):
                raise BuildError(f"{path} cannot be read: {said}") from error
            found.append(path)
    return found


def _read_through(spark: SparkSession, path: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    file = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path))
    stream = file.getFileSystem(configuration).open(file)
    try:
        codec = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(configuration).getCodec(file)
        if codec is not None:
            jvm.org.apache.commons.io.IOUtils.consume(codec.createInputStream(stream))
    finally:
        stream.close()
