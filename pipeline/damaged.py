"""Files that end before their end, or are no gzip: found by name once a read has failed.

Spark can pass over files that it cannot read, but it says of none which, and takes a disk that fails for a file that is
damaged. So a day is read strictly. Only when that fails are its files looked into, one after the other, on the driver.
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
"""The reason against such a file."""

# As Hadoop's decompressors say it: a connection to HDFS that ends is an EOFException too.
_DAMAGE: Final = re.compile(
    r"EOFException: Unexpected end of input stream|ZipException"
    r"|IOException: (not a gzip|gzip (data|header)|invalid |incorrect |too many length|unknown compression|header crc)"
)
# Told behind the last byte, after all lines: any of them may be wrong, and the sample is whole nevertheless.
_ALTERED: Final = re.compile(r"IOException: (gzip stream CRC|stored gzip size)")
_FOLDER: Final = re.compile(r"/date=(\d{4}-\d\d-\d\d)/")


def damaged_files(spark: SparkSession, paths: Iterable[str], day: date) -> list[str]:
    """Return those of `paths` that are damaged, where folders tell of days only those about `day`.

    The samples before their damage are as they were written. BuildError for one of which that is not so, and for one
    that cannot be read for another reason: it is there, and may be whole.
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
