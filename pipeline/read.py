"""Reads exported lines as a DataFrame, and tells of each bad one why it is bad.

The schema is that of `weir.samples.schema`. All kinds of lines are rows of one frame: fields that a kind does not have
are null, and fields that no table needs are not read.
Three columns are added: `ended_micros` (microseconds since 1970, UTC), `micros` (the interval's length), and `ended`
(the second in which its last microsecond lies: of a sample that ends at midnight, the last one of the day).

Ends are by the time of day, lengths by the monotonic clock. A step of the clock therefore moves samples, but never
stretches them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from weir.access.client_properties import parse_properties
from weir.pipeline.days import HOUR_SECONDS, Days, midnight
from weir.pipeline.errors import SPARK_ERRORS, BuildError, first_line
from weir.samples.schema import (
    BLOCK,
    KINDS,
    SCHEMA_VERSION,
    IntervalLine,
    LimitLine,
    Line,
    LinkLine,
    PartitionsLine,
    QuotaLine,
    columns,
    kind_of,
)

MAX_CHARACTERS: Final = 1100
"""A line with a longer text (in bytes) is bad: topics' names have at most 249 characters, and what is told of a client
about 260, of four bytes each. Of a bad line this much is kept.
"""

MAX_SECONDS: Final = 100_000
"""A quota line of more seconds is bad: this is more than a day."""

SAMPLE_KEY: Final = ("broker_id", "start_id", "sequence")

LATE_SECONDS: Final = 24 * HOUR_SECONDS
"""A record that waited for its topic has the time at which it was sent: at most so long after its samples."""

_KAFKA: Final = "kafka://"
_CORRUPT: Final = "_corrupt"
_TYPES: Final = {
    "int": T.LongType(),
    "float": T.DoubleType(),
    "str": T.StringType(),
    "list[int]": T.ArrayType(T.LongType()),
    "list[int or null]": T.ArrayType(T.LongType()),
}
UNUSED: Final = frozenset(
    {
        *("bytes_complete", "bytes_cut", "batches"),
        *("connections", "partitions_behind", "fetches", "fetches_held"),
        *("version", "interval_seconds"),
        *("share", "record_rate_avg"),
        *(f"columns.{name}" for name in ("bytes_complete", "bytes_cut", "batches", "left_out")),
    }
)
"""Only fields that a table is made of are read, which saves a quarter of the time."""

_READ: Final = {
    column.name: _TYPES[column.type] for kind in KINDS for column in columns(kind) if column.name not in UNUSED
}
_COLUMNS: Final = {name.removeprefix("columns."): kind for name, kind in _READ.items() if name.startswith("columns.")}
_NOT_NEGATIVE: Final = ("bytes_throttled", "bytes_unthrottled", "bytes", "records")
_MAY_BE_NULL: Final = ("lag_messages", "lag_ms")
FIELDS: Final[dict[str, T.DataType]] = {name: kind for name, kind in _READ.items() if "." not in name} | {
    "columns": T.StructType([T.StructField(name, kind) for name, kind in _COLUMNS.items()])
}
_TEXTS: Final = [name for name, kind in FIELDS.items() if isinstance(kind, T.StringType)]
_SCHEMA: Final = T.StructType(
    [T.StructField(name, kind) for name, kind in {**FIELDS, _CORRUPT: T.StringType()}.items()]
)
_OF_BAD_LINES: Final = ("reason", "text", "file", "folder_hour", "schema", "min_reader", "end_utc")
_JSON: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


@dataclass(frozen=True, slots=True)
class Lines:
    """The good lines, by kind. Those of `partitions` have columns, which `by_partition` makes rows."""

    partitions: DataFrame
    links: DataFrame
    quotas: DataFrame
    limits: DataFrame
    ends: DataFrame


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


def input_size(spark: SparkSession, source: str, days: Days) -> int | None:
    """Return the bytes of all files that may have lines of `days`; None where folders do not tell."""
    folders = None if source.startswith(_KAFKA) else _folders(spark, source, days)
    if folders is None:
        return None
    return sum(_length(spark, folder) for folder in (*folders.own, *folders.beside))


def _length(spark: SparkSession, folder: str) -> int:
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(folder)  # type: ignore[union-attr]
    files: Any = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return int(files.getContentSummary(path).getLength())


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
    return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in _SCHEMA))


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
    return lines.select(*FIELDS, _CORRUPT, F.input_file_name().alias("file"), folder_hour.alias("folder_hour"))


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


def parse(lines: DataFrame) -> DataFrame:
    """Return every line with `ended_micros`, `ended`, `micros`, and `reason`: why it is bad, or null.

    In good lines `schema`, `min_reader`, `end_utc`, `file` and `text` are null. `text` is a line as it came, where it
    could not be read.
    """
    is_bad = F.col("reason").isNotNull()
    of_bad = {name: F.when(is_bad, F.col(name)).alias(name) for name in ("schema", "min_reader", "end_utc", "file")}
    # Spark compiles all of this into one loop over the lines. It cannot compile to_json, which is left to `quarantine`.
    return (
        lines.withColumn("ended_at", _utc("end_utc"))
        .withColumn("ended_micros", F.unix_micros("ended_at"))
        .withColumn("ended", F.expr("(ended_micros - 1) div 1000000"))
        .withColumn("micros", _micros(F.col("end_seconds") - F.col("begin_seconds")))
        .withColumn("reason", _reason())
        .select(
            "reason",
            F.when(is_bad, F.substring(_CORRUPT, 1, MAX_CHARACTERS)).alias("text"),
            of_bad["file"],
            "folder_hour",
            *(of_bad.get(name, F.col(name)) for name in FIELDS),
            "ended_micros",
            "ended",
            "micros",
        )
    )


def _utc(name: str) -> Column:
    """Parse a UTC time that ends with Z, as one in the session's zone.

    That zone is UTC. To read the zone from the text would take Spark twice as long.
    """
    is_whole = F.col(name).endswith("Z") & (F.length(name) >= len("2026-01-31T23:59:59Z"))  # a day alone is no time
    return F.when(is_whole, F.expr(f"trim(TRAILING 'Z' FROM {name})").cast("timestamp"))


def _micros(seconds: Column) -> Column:
    return F.floor(seconds * 1e6 + 0.5)  # for values >= 0; F.round would make a BigDecimal of each


def _reason() -> Column:
    missing = reduce(or_, (_lacks(kind) for kind in KINDS))
    negative = reduce(or_, (F.coalesce(F.col(name) < 0, F.lit(False)) for name in _NOT_NEGATIVE))
    too_long = reduce(or_, (F.octet_length(name) > MAX_CHARACTERS for name in _TEXTS))
    # of a line that breaks off Spark tells what it has read until then
    is_partial = F.coalesce("kind", "start_id", "end_utc").isNotNull() & F.rtrim(_CORRUPT).endswith("}")
    is_known = F.coalesce(F.col("kind").isin([kind_of(kind) for kind in KINDS]), F.lit(False))
    return (
        F.when(F.coalesce("min_reader", F.lit(1)) > SCHEMA_VERSION, "newer_schema")
        .when(F.col(_CORRUPT).isNotNull(), F.when(is_partial, "wrong_type").otherwise("not_json"))
        # a kind that a newer version added, and of which no table of this one is made
        .when(~is_known & (F.coalesce("schema", F.lit(1)) <= SCHEMA_VERSION), "unknown_kind")
        .when(missing, "missing_field")
        .when(too_long | (F.size("bytes_by_second") > MAX_SECONDS), "too_long")
        .when(F.col("ended").isNull() | (F.col("micros") <= 0), "bad_time")
        .when(negative, "negative_bytes")
        .when(F.col("kind") == kind_of(PartitionsLine), _reason_of_columns())
    )


def _reason_of_columns() -> Column:
    ids = F.col("columns.partition")
    figures = [F.col(f"columns.{name}") for name in _COLUMNS if name != "partition"]
    known = [F.col(f"columns.{name}") for name in _COLUMNS if name not in _MAY_BE_NULL]
    unlike = reduce(or_, ((F.size(column) != 0) & (F.size(column) != F.size(ids)) for column in figures))
    # null where -1 is not there and a null is
    has_null = reduce(or_, (F.array_contains(column, F.lit(-1).cast("long")).isNull() for column in known))
    outside = reduce(or_, (F.floor(end(ids) / BLOCK) != F.col("block") for end in (F.array_min, F.array_max)))
    bytes_ = [F.col(f"columns.{name}") for name in ("bytes_throttled", "bytes_unthrottled")]
    return (
        F.when(unlike, "unlike_lengths")
        .when((F.size(ids) == 0) | has_null, "null_value")
        .when(outside, "wrong_block")
        .when(F.size(F.array_distinct(ids)) != F.size(ids), "repeated_partition")
        .when(reduce(or_, (F.coalesce(F.array_min(column) < 0, F.lit(False)) for column in bytes_)), "negative_bytes")
    )


def _lacks(kind: type[Line]) -> Column:
    required = [field.encode_name for field in msgspec.structs.fields(kind) if field.required]
    nulls = [F.col(name).isNull() for name in required if name in FIELDS]
    if "columns" in required:
        nulls += [F.col(f"columns.{name}").isNull() for name in _COLUMNS]
    return (F.col("kind") == kind_of(kind)) & reduce(or_, nulls)


def of_days(parsed: DataFrame, days: Days) -> DataFrame:
    """Return the good lines of samples that ended in some days, and the bad lines in these days' folders."""
    good = F.col("reason").isNull()
    # Bad lines in folders that name no hour are reported for every day.
    lay = F.col("folder_hour").isNull() | F.col("folder_hour").between(*days.seconds())
    return parsed.where((good & F.col("ended").between(*days.seconds())) | (~good & lay))


def good_lines(parsed: DataFrame) -> DataFrame:
    """Return the lines that have no `reason`, as they were exported."""
    return parsed.where(F.col("reason").isNull()).drop(*_OF_BAD_LINES)


def by_kind(lines: DataFrame) -> Lines:
    """Split good lines by kind."""

    def of(kind: type[Line]) -> DataFrame:
        return lines.where(F.col("kind") == kind_of(kind))

    return Lines(of(PartitionsLine), of(LinkLine), of(QuotaLine), of(LimitLine), of(IntervalLine))


def by_partition(partitions: DataFrame, *names: str) -> DataFrame:
    """Return a row for each partition, with `partition` and the figures `names` beside the columns of its line."""
    # Twice as fast as to zip the columns and to make rows of that, which makes an object of each row.
    rows = partitions.drop(*names).select("*", F.posexplode("columns.partition").alias("row", "partition"))
    figures = {
        name: F.when(F.size(f"columns.{name}") > 0, F.get(f"columns.{name}", F.col("row"))).otherwise(F.lit(0))
        for name in names
    }
    return rows.withColumns(figures).drop("columns", "row")
