# SPDX-License-Identifier: Apache-2.0
"""Reads exported lines with Spark: see `weir.pipeline.lines` for what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.access.client_properties import parse_properties
from weir.pipeline.days import HOUR_SECONDS, Days, midnight
from weir.pipeline.errors import BuildError
from weir.pipeline.lines import CORRUPT, FIELDS
from weir.pipeline.spark_errors import SPARK_ERRORS, first_line

LATE_SECONDS: Final = 24 * HOUR_SECONDS
"""A record that waited for its topic has the time at which it was sent: at most so long after its samples."""

_KAFKA: Final = "kafka://"
_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in {**FIELDS, CORRUPT: "string"}.items())
_JSON: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def client_properties(file: Path | None) -> dict[str, str]:
    """Read Kafka's client properties, as its Java clients take them; BuildError where that cannot be done."""
    try:
        return {} if file is None else parse_properties(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BuildError(f"{file} cannot be read: {reason}") from error


def is_by_day(spark: SparkSession, source: str, days: Days) -> bool:
    """Whether the source has its files in folders of days, so that each day can be read alone. Raises BuildError."""
    try:
        return not source.startswith(_KAFKA) and _folders(spark, source, days) is not None
    except SPARK_ERRORS as error:
        raise BuildError(f"{source} cannot be read: {first_line(error)}") from error


def read_lines(
    spark: SparkSession, source: str, days: Days, damaged: Collection[str] = (), kafka: Mapping[str, str] | None = None
) -> DataFrame:
    """Return the fields of every line that may belong to `days`, with `_corrupt`, `file` and `folder_hour`.

    - `source` is a Hadoop path, or `kafka://host:port[,host:port]/topic`.
    - Files in `date=/hour=` folders are read from an hour before the days to an hour after them, as a file may have
      samples of the next hour. Other folders are not even listed. `folder_hour`, in seconds since 1970, is null where
      folders name no hour.
    - `damaged` files are read up to their damage.
    - `kafka` are client properties for a topic. Records are read that it took from an hour before the days to
      LATE_SECONDS after them.

    Raises BuildError.
    """
    try:
        if source.startswith(_KAFKA):
            return _read_kafka(spark, source, days, kafka or {})
        if not damaged:
            return _read_source(spark, source, days)
        # Spark skips errors in the damaged files only. Their good lines are read; samples that are not whole go later.
        whole = [path for path in input_files(spark, source, days) if path not in damaged]
        cut = _read_files(spark, source, *damaged, ignoreCorruptFiles="true")
        return _read_files(spark, source, *whole).union(cut) if whole else cut
    except SPARK_ERRORS as error:
        # By its text: Spark 4 has another name for the method that tells an error's class.
        if isinstance(error, AnalysisException) and first_line(error).startswith("[PATH_NOT_FOUND]"):
            # Hadoop's configuration may put a path without a scheme on another file system than this machine's
            path = (error.getMessageParameters() or {}).get("path", source)
            raise BuildError(f"there is no {source if path.startswith('file:') else path}") from error
        raise BuildError(f"{source} cannot be read: {first_line(error)}") from error


def input_files(spark: SparkSession, source: str, days: Days) -> list[str]:
    """Return the addresses of the files that may have lines of `days`; none where the source is a topic."""
    if source.startswith(_KAFKA):
        return []
    folders = _folders(spark, source, days)
    paths = [source] if folders is None else [*folders.own, *folders.beside]
    return spark.read.schema(_SCHEMA).json(paths).inputFiles() if paths else []


@dataclass(frozen=True, slots=True)
class _Folders:
    """Addresses of folders: the days' `own`, and those of the hours `beside` them, which may have a few samples."""

    own: list[str]
    beside: list[str]


def _folders(spark: SparkSession, source: str, days: Days) -> _Folders | None:
    """Return the folders in which lines of `days` may be; None where folders name no hours.

    The days are named, and only their own folders are listed: what others there are does not slow a run down.
    """

    def matching(names: Iterable[str]) -> list[str]:
        return [folder for name in names for folder in _matching(spark, source, name)]

    own = matching(f"date={day.first}/hour=*" for day in days.each())
    beside = midnight(days.first) - timedelta(hours=1), midnight(days.until)
    found = _Folders(own, matching(f"date={hour:%Y-%m-%d}/hour={hour:%H}" for hour in beside))
    return found if found.own or found.beside or _matching(spark, source, "date=*") else None


def _matching(spark: SparkSession, source: str, pattern: str) -> list[str]:
    """Return the addresses of what is in a folder under a name of this pattern."""
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(f"{source.rstrip('/')}/{pattern}")  # type: ignore[union-attr]
    found: Any = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).globStatus(path)
    return [status.getPath().toString() for status in found or ()]


def _read_source(spark: SparkSession, source: str, days: Days) -> DataFrame:
    folders = _folders(spark, source, days)
    if folders is None:
        return _read_files(spark, source)
    own = _read_files(spark, source, *folders.own) if folders.own else _with_file(_no_lines(spark))
    return own.union(_read_beside(spark, source, days, folders.beside)) if folders.beside else own


def _no_lines(spark: SparkSession) -> DataFrame:
    """Return a frame without rows. `createDataFrame` would start Python on the executors, even for none."""
    return spark.range(0).select(
        *(F.lit(None).cast(kind).alias(name) for name, kind in {**FIELDS, CORRUPT: "string"}.items())
    )


def _read_beside(spark: SparkSession, source: str, days: Days, folders: Sequence[str]) -> DataFrame:
    """Read, in folders of other days, the lines that have a time of these. Only these few are parsed."""
    texts = spark.read.option("basePath", source).text(list(folders))
    times = [f"{day.first}T" for day in days.each()]
    times.append(f"{days.until}T00:00:00")  # a sample that ends at midnight is one of the day before
    theirs = texts.where(reduce(or_, (F.col("value").contains(time) for time in times)))
    parsed = theirs.withColumn("parsed", F.from_json("value", _SCHEMA, _JSON))
    return _with_file(parsed.select("parsed.*", *(name for name in ("date", "hour") if name in texts.columns)))


def _read_files(spark: SparkSession, source: str, *paths: str, **options: str) -> DataFrame:
    """Read a source, or some paths in it."""
    # Spark's own reader of JSON lines: `from_json` takes a fifth longer.
    reader = spark.read.schema(_SCHEMA).options(**_JSON, **options).option("basePath", source)
    return _with_file(reader.json(list(paths) or source))


def _with_file(lines: DataFrame) -> DataFrame:
    """Return the fields, with `file` and `folder_hour`."""
    folder_hour = F.lit(None).cast("long")
    if "date" in lines.columns and "hour" in lines.columns:
        folder_hour = F.unix_seconds(F.col("date").cast("timestamp")) + F.col("hour").cast("long") * HOUR_SECONDS
    return lines.select(*FIELDS, CORRUPT, F.input_file_name().alias("file"), folder_hour.alias("folder_hour"))


def _read_kafka(spark: SparkSession, source: str, days: Days, kafka: Mapping[str, str]) -> DataFrame:
    servers, _, topic = source.removeprefix(_KAFKA).partition("/")
    if not servers or not topic:
        raise BuildError(f"{source} is not of the form kafka://host:port/topic")
    first, last = days.seconds()
    found = (
        spark.read.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in kafka.items()})
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingTimestamp", str((first - HOUR_SECONDS) * 1000))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("endingTimestamp", str((last + 1 + LATE_SECONDS) * 1000))
        .load()
    )
    # A record may hold several lines.
    lines = found.select(F.explode(F.split(F.col("value").cast("string"), "\n")).alias("line"), "timestamp")
    sent_hour = F.unix_seconds(F.date_trunc("hour", F.col("timestamp")))
    return (
        lines.where(F.trim("line") != "")
        .select(F.from_json("line", _SCHEMA, _JSON).alias("parsed"), sent_hour.alias("folder_hour"))
        .select("parsed.*", F.lit(source).alias("file"), "folder_hour")
    )
