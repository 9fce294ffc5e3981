"""Exported samples as a DataFrame: reading, quarantine of bad lines, duplicates, samples that are not whole.

The schema is that of `samples.schema`; here all kinds of lines are rows of one frame, with null where a kind has no
such field, and without the fields that no table is made of. Added are `ended_micros` and `ended` (micro- and whole
seconds since 1970, UTC), and `micros` (the interval's length). The end is by the time of day, lengths are by the
monotonic clock: a step of the clock moves samples, and never stretches them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from operator import or_
from typing import Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipeline.damaged import DAMAGED_FILE
from pipeline.errors import SPARK_ERRORS, BuildError, first_line
from samples.schema import (
    KINDS,
    SCHEMA_VERSION,
    IntervalLine,
    Line,
    LinkLine,
    PartitionLine,
    QuotaLine,
    columns,
    kind_of,
)

MAX_CHARACTERS: Final = 1000
"""A line with a longer text is bad: Kafka's names have at most 249 characters. As much is kept of a bad line."""

MAX_SECONDS: Final = 100_000
"""A quota's line of more seconds is bad: that is more than a day."""

SAMPLE_KEY: Final = ("broker_id", "start_id", "sequence")

LINE_KEY: Final = ("kind", *SAMPLE_KEY, "side", "peer", "topic", "partition", "quota", "in_force_from_seconds")
"""Of two lines with the same values here (null for what a kind does not have) one is a duplicate."""

PARTIAL_SAMPLE: Final = "partial_sample"
"""The reason against samples that are not whole."""

_KAFKA: Final = "kafka://"
_CORRUPT: Final = "_corrupt"
_TYPES: Final = {
    "int": T.LongType(),
    "float": T.DoubleType(),
    "str": T.StringType(),
    "list[int]": T.ArrayType(T.LongType(), containsNull=False),
}
UNUSED: Final = frozenset(
    {
        *("bytes_complete", "bytes_cut", "batches"),
        *("connections", "partitions_behind", "fetches", "fetches_held"),
        *("version", "interval_seconds"),
    }
)
"""What no table is made of is not even read: that is a quarter of the time."""

_FIELDS: Final = {
    column.name: _TYPES[column.type] for kind in KINDS for column in columns(kind) if column.name not in UNUSED
}
_TEXTS: Final = [name for name, kind in _FIELDS.items() if isinstance(kind, T.StringType)]
_SCHEMA: Final = T.StructType(
    [T.StructField(name, kind) for name, kind in {**_FIELDS, _CORRUPT: T.StringType()}.items()]
)
_OF_BAD_LINES: Final = ("reason", "text", "file", "folder_day", "schema", "end_utc")
_JSON: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


@dataclass(frozen=True, slots=True)
class Lines:
    """The good lines, by kind."""

    partitions: DataFrame
    links: DataFrame
    quotas: DataFrame
    ends: DataFrame


def read_lines(spark: SparkSession, source: str, day: date, damaged: Collection[str] = ()) -> DataFrame:
    """Return the fields, `_corrupt`, `file` and `folder_day` (null where folders do not tell) of what may hold samples.

    `source` is a Hadoop path, or `kafka://host:port[,host:port]/topic`. Files in `date=/hour=` folders are read from an
    hour before the UTC day to an hour behind it: one may have samples of the next hour. Those that are `damaged` are
    read up to the damage. BuildError says what is wrong.
    """
    try:
        if source.startswith(_KAFKA):
            return _read_kafka(spark, source, day)
        if not damaged:
            return _read_files(spark, source, day)
        # Spark passes over what is wrong in the damaged ones alone. What they have is read; samples that are not whole
        # are left out later.
        whole = [path for path in input_files(spark, source) if path not in damaged]
        cut = _read_files(spark, source, day, *damaged, ignoreCorruptFiles="true")
        return _read_files(spark, source, day, *whole).union(cut) if whole else cut
    except SPARK_ERRORS as error:
        if isinstance(error, AnalysisException) and error.getErrorClass() == "PATH_NOT_FOUND":
            # Hadoop's own configuration may put a path without a scheme on another file system than this machine's.
            path = (error.getMessageParameters() or {}).get("path", source)
            raise BuildError(f"there is no {source if path.startswith('file:') else path}") from error
        raise BuildError(f"{source} cannot be read: {first_line(error)}") from error


def input_files(spark: SparkSession, source: str) -> list[str]:
    """Return the addresses of a source's files; none where it is a topic."""
    return [] if source.startswith(_KAFKA) else spark.read.schema(_SCHEMA).json(source).inputFiles()


def _read_files(spark: SparkSession, folder: str, day: date, *files: str, **options: str) -> DataFrame:
    """Read all of a folder, or only some of its files."""
    # Spark's own reader of JSON lines, since `from_json` takes a fifth longer.
    reader = spark.read.schema(_SCHEMA).options(**_JSON, **options)
    lines = reader.option("basePath", folder).json(list(files)) if files else reader.json(folder)
    folder_day = F.lit(None).cast("date")
    if {"date", "hour"} <= set(lines.columns):
        folder_day = F.col("date").cast("date")
        hour = F.unix_timestamp(folder_day.cast("timestamp")) + F.col("hour").cast("long") * 3600
        lines = lines.where(hour.between(_seconds(day) - 3600, _seconds(day + timedelta(days=1))))
    return lines.select(*_FIELDS, _CORRUPT, F.input_file_name().alias("file"), folder_day.alias("folder_day"))


def _read_kafka(spark: SparkSession, source: str, day: date) -> DataFrame:
    servers, _, topic = source.removeprefix(_KAFKA).partition("/")
    if not servers or not topic:
        raise BuildError(f"{source} is not of the form kafka://host:port/topic")
    found = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingTimestamp", str((_seconds(day) - 3600) * 1000))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load()
    )
    # Up to the topic's end: what waited for hours has the time at which it was sent. A record may hold several lines.
    lines = found.select(F.explode(F.split(F.col("value").cast("string"), "\n")).alias("line"), "timestamp")
    return (
        lines.where(F.trim("line") != "")
        .select(F.from_json("line", _SCHEMA, _JSON).alias("parsed"), "timestamp")
        .select("parsed.*", F.lit(source).alias("file"), F.col("timestamp").cast("date").alias("folder_day"))
    )


def parse(lines: DataFrame) -> DataFrame:
    """Return every line with `ended_micros`, `ended`, `micros`, and `reason`: why it is bad; null where it is good.

    Null in good lines are `schema`, `end_utc`, `file`, and `text`: the line as it came where it could not be read.
    """
    is_bad = F.col("reason").isNotNull()
    of_bad = {name: F.when(is_bad, F.col(name)).alias(name) for name in ("schema", "end_utc", "file")}
    # All of it is compiled by Spark, into one loop over the lines: to_json, which it does not compile, waits for
    # `quarantine`.
    return (
        lines.withColumn("ended_at", _utc("end_utc"))
        .withColumn("ended_micros", F.unix_micros("ended_at"))
        .withColumn("ended", F.unix_seconds("ended_at"))
        .withColumn("micros", _micros(F.col("end_seconds") - F.col("begin_seconds")))
        .withColumn("reason", _reason())
        .select(
            "reason",
            F.when(is_bad, F.substring(_CORRUPT, 1, MAX_CHARACTERS)).alias("text"),
            of_bad["file"],
            "folder_day",
            *(of_bad.get(name, F.col(name)) for name in _FIELDS),
            "ended_micros",
            "ended",
            "micros",
        )
    )


def _utc(name: str) -> Column:
    """A time that ends with Z. In the session's zone, which is UTC: Spark takes as long again to look at a zone."""
    return F.when(F.col(name).endswith("Z"), F.expr(f"trim(TRAILING 'Z' FROM {name})").cast("timestamp"))


def _micros(seconds: Column) -> Column:
    return F.floor(seconds * 1e6 + 0.5)  # what is 0 or more; F.round would make a BigDecimal of each


def _reason() -> Column:
    missing = reduce(or_, (_lacks(kind) for kind in KINDS))
    negative = (F.col("bytes_throttled") < 0) | (F.col("bytes_unthrottled") < 0)
    too_long = reduce(or_, (F.octet_length(name) > MAX_CHARACTERS for name in _TEXTS))
    return (
        F.when(F.col("schema") > SCHEMA_VERSION, "newer_schema")
        .when(F.col(_CORRUPT).isNotNull(), "not_json")
        .when(F.col("kind").isNull() | ~F.col("kind").isin([kind_of(kind) for kind in KINDS]), "unknown_kind")
        .when(missing, "missing_field")
        .when(too_long | (F.size("bytes_by_second") > MAX_SECONDS), "too_long")
        .when(F.col("ended").isNull() | (F.col("micros") <= 0), "bad_time")
        .when(negative, "negative_bytes")
    )


def _lacks(kind: type[Line]) -> Column:
    required = (field.encode_name for field in msgspec.structs.fields(kind) if field.required)
    nulls = (F.col(name).isNull() for name in required if name in _FIELDS)
    return (F.col("kind") == kind_of(kind)) & reduce(or_, nulls)


def of_day(parsed: DataFrame, day: date) -> DataFrame:
    """Return the good lines of samples that ended on a UTC day, and the bad ones that lay in its folder."""
    good = F.col("reason").isNull()
    ended = F.col("ended").between(_seconds(day), _seconds(day + timedelta(days=1)) - 1)
    # Where no folder tells the day of bad lines, each day has them.
    lay = F.col("folder_day").isNull() | (F.col("folder_day") == F.lit(day))
    return parsed.where((good & ended) | (~good & lay))


def good_lines(parsed: DataFrame) -> DataFrame:
    """Return the lines without a reason against them, as they were exported."""
    return parsed.where(F.col("reason").isNull()).drop(*_OF_BAD_LINES)


def by_kind(lines: DataFrame) -> Lines:
    """Return good lines by kind."""
    kinds = (PartitionLine, LinkLine, QuotaLine, IntervalLine)
    return Lines(*(lines.where(F.col("kind") == kind_of(kind)) for kind in kinds))


def samples(lines: DataFrame) -> DataFrame:
    """Return one row for each sample: its key, whether it is `whole`, whether lines may come `twice`, and `lines`.

    A sample is whole when its end is there, and as many lines of each kind as its end tells.
    """

    def count(kind: str) -> Column:
        return F.count(F.when(F.col("kind") == kind, 1))

    counted = lines.groupBy(*SAMPLE_KEY).agg(
        F.count(F.lit(1)).alias("lines"),
        *(count(kind_of(kind)).alias(f"{kind_of(kind)}_lines") for kind in KINDS),
        *(F.max(f"{kind}s").alias(f"{kind}s") for kind in ("partition", "link", "quota")),
    )
    pairs = [(F.col(f"{kind}_lines"), F.col(f"{kind}s")) for kind in ("partition", "link", "quota")]
    enough = reduce(lambda one, other: one & other, (found >= told for found, told in pairs))
    more = reduce(or_, (found > told for found, told in pairs)) | (F.col("interval_lines") > 1)
    return counted.select(
        *SAMPLE_KEY,
        "lines",
        F.coalesce(enough & (F.col("interval_lines") > 0), F.lit(False)).alias("whole"),
        F.coalesce(more, F.lit(False)).alias("twice"),
    )


def missing_samples(found: DataFrame) -> DataFrame:
    """Return one row, `missing`: how many numbers are left out in the samples' sequences, of whole samples or not."""
    by_start = found.groupBy("broker_id", "start_id").agg(
        (F.max("sequence") - F.min("sequence") + 1 - F.count(F.lit(1))).alias("missing")
    )
    return by_start.agg(F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"))


def without_partial(lines: DataFrame, found: DataFrame) -> DataFrame:
    """Return the lines of whole samples; `found` is what `samples` says of them."""
    partial = found.where(~F.col("whole")).select(*SAMPLE_KEY)
    return lines.join(F.broadcast(partial), [*SAMPLE_KEY], "left_anti")


def without_duplicates(lines: DataFrame) -> DataFrame:
    """Return each line once, however often it came and from whichever file."""
    return lines.dropDuplicates([*LINE_KEY])


def quarantine(parsed: DataFrame, found: DataFrame, damaged: Collection[str] = ()) -> DataFrame:
    """Return bad lines, samples that are not whole, and damaged files, a row each.

    The columns are `reason`, `file`, `line` and `lines`: how many the row is for, of a file none.
    """
    line = F.substring(F.coalesce("text", F.to_json(F.struct(*_FIELDS))), 1, MAX_CHARACTERS)
    bad = parsed.where(F.col("reason").isNotNull()).select("reason", "file", line, F.lit(1).cast("long"))
    partial = found.where(~F.col("whole")).select(
        F.lit(PARTIAL_SAMPLE), F.lit(None).cast("string"), F.to_json(F.struct(*SAMPLE_KEY)), "lines"
    )
    table = bad.union(partial)
    if damaged:
        path = F.explode(F.array(*(F.lit(path) for path in damaged)))
        files = found.sparkSession.range(1).select(
            F.lit(DAMAGED_FILE), path, F.lit(None).cast("string"), F.lit(0).cast("long")
        )
        table = table.union(files)
    return table.toDF("reason", "file", "line", "lines")


def _seconds(day: date) -> int:
    return (day - date(1970, 1, 1)).days * 86_400
