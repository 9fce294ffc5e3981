"""Exported samples as a DataFrame: reading, quarantine of bad lines, duplicates, samples that are not whole.

The schema is that of `quota.samples`; here all kinds of lines are rows of one frame, with null where a kind has no such
field. Added are `file`, `ended` (whole seconds since 1970, UTC) and `micros` (the interval's length). The end is by
the time of day, lengths are by the monotonic clock: a step of the clock moves samples, and never stretches them.
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import reduce
from operator import or_
from typing import Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipeline.errors import SPARK_ERRORS, BuildError, first_line
from quota.samples import KINDS, SCHEMA_VERSION, columns, kind_of

MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is bad: samples have lines of less than 1 KB, but for the seconds of a quota."""

SHOWN_CHARACTERS: Final = 1000
"""As much of a bad line is kept."""

SAMPLE_KEY: Final = ("broker_id", "start_id", "sequence")

LINE_KEY: Final = ("kind", *SAMPLE_KEY, "side", "peer", "topic", "partition", "quota", "in_force_from_seconds")
"""Of two lines with the same values here (null for what a kind does not have) one is a duplicate."""

_KAFKA: Final = "kafka://"
_CORRUPT: Final = "_corrupt"
_TYPES: Final = {
    "int": T.LongType(),
    "float": T.DoubleType(),
    "str": T.StringType(),
    "list[int]": T.ArrayType(T.LongType(), containsNull=False),
}
_FIELDS: Final = {column.name: _TYPES[column.type] for kind in KINDS for column in columns(kind)}

QUARANTINE: Final = "reason string, file string, line string, lines long"


def read_lines(spark: SparkSession, source: str, day: date) -> DataFrame:
    """Return `line`, `file` and `folder_day` (null where folders do not tell) of what may hold samples of one UTC day.

    `source` is a Hadoop path, or `kafka://host:port[,host:port]/topic`. Files in `date=/hour=` folders are read from an
    hour before the day to an hour behind it: one may have samples of the next hour. BuildError says what is wrong.
    """
    try:
        return _read_kafka(spark, source, day) if source.startswith(_KAFKA) else _read_files(spark, source, day)
    except SPARK_ERRORS as error:
        if isinstance(error, AnalysisException) and error.getErrorClass() == "PATH_NOT_FOUND":
            raise BuildError(f"there is no {source}") from error
        raise BuildError(f"{source} cannot be read: {first_line(error)}") from error


def _read_files(spark: SparkSession, path: str, day: date) -> DataFrame:
    # What a file that was cut short has before the cut is read; samples that are not whole are left out later.
    lines = spark.read.option("ignoreCorruptFiles", True).text(path).withColumn("file", F.input_file_name())
    folder_day = F.lit(None).cast("date")
    if {"date", "hour"} <= set(lines.columns):
        folder_day = F.col("date").cast("date")
        hour = F.unix_timestamp(folder_day.cast("timestamp")) + F.col("hour").cast("long") * 3600
        lines = lines.where(hour.between(_seconds(day) - 3600, _seconds(day + timedelta(days=1))))
    return lines.select(F.col("value").alias("line"), "file", folder_day.alias("folder_day"))


def _read_kafka(spark: SparkSession, source: str, day: date) -> DataFrame:
    servers, _, topic = source.removeprefix(_KAFKA).partition("/")
    if not servers or not topic:
        raise BuildError(f"{source} is not of the form kafka://host:port/topic")
    found = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingTimestamp", str((_seconds(day) - 3600) * 1000))
        .option("endingTimestamp", str((_seconds(day + timedelta(days=1)) + 3600) * 1000))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load()
    )
    # A record may hold several lines.
    line = F.explode(F.split(F.col("value").cast("string"), "\n"))
    return found.select(line.alias("line"), F.lit(source).alias("file"), F.col("timestamp").cast("date")).toDF(
        "line", "file", "folder_day"
    )


def parse(lines: DataFrame) -> DataFrame:
    """Return every line that is not blank as a row; `reason` says why a line is bad, and is null where it is good.

    `line` and `file` are kept of bad lines alone.
    """
    schema = T.StructType([T.StructField(name, kind) for name, kind in {**_FIELDS, _CORRUPT: T.StringType()}.items()])
    fits = F.octet_length("line") <= MAX_LINE_BYTES
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = F.when(fits, F.col("line"))
    parsed = (
        lines.where(F.trim("line") != "")
        .select("*", F.from_json(text, schema, options).alias("parsed"))
        .select("line", "file", "folder_day", "parsed.*")
        .withColumn("ended_at", F.col("end_utc").cast("timestamp"))
        .withColumn("ended", F.unix_seconds("ended_at"))
        .withColumn("micros", F.round((F.col("end_seconds") - F.col("begin_seconds")) * 1e6).cast("long"))
        .withColumn("reason", _reason(fits))
    )
    is_bad = F.col("reason").isNotNull()
    return parsed.select(
        "reason",
        F.when(is_bad, F.substring("line", 1, SHOWN_CHARACTERS)).alias("line"),
        F.when(is_bad, F.col("file")).alias("file"),
        "folder_day",
        *_FIELDS,
        "ended",
        "ended_at",
        "micros",
    )


def _reason(fits: Column) -> Column:
    whole = F.col("line").startswith("{") & F.rtrim("line").endswith("}")
    missing = reduce(or_, (_lacks(kind) for kind in KINDS))
    negative = (F.col("bytes_throttled") < 0) | (F.col("bytes_unthrottled") < 0)
    return (
        F.when(~fits, "too_long")
        .when(F.col("schema") > SCHEMA_VERSION, "newer_schema")
        .when(F.col(_CORRUPT).isNotNull() | ~whole, "not_json")
        .when(F.col("kind").isNull() | ~F.col("kind").isin([kind_of(kind) for kind in KINDS]), "unknown_kind")
        .when(missing, "missing_field")
        .when(F.col("ended").isNull() | (F.col("micros") <= 0), "bad_time")
        .when(negative, "negative_bytes")
    )


def _lacks(kind: type[msgspec.Struct]) -> Column:
    nulls = (F.col(field.encode_name).isNull() for field in msgspec.structs.fields(kind) if field.required)
    return (F.col("kind") == kind_of(kind)) & reduce(or_, nulls)  # type: ignore[arg-type]


def of_day(parsed: DataFrame, day: date) -> DataFrame:
    """Return the good lines of samples that ended on a UTC day, and the bad ones that lay in its folder."""
    good = F.col("reason").isNull()
    ended = F.col("ended").between(_seconds(day), _seconds(day + timedelta(days=1)) - 1)
    # Where no folder tells the day of bad lines, each day has them.
    lay = F.col("folder_day").isNull() | (F.col("folder_day") == F.lit(day))
    return parsed.where((good & ended) | (~good & lay))


def good_lines(parsed: DataFrame) -> DataFrame:
    """Return the lines without a reason against them, as they were exported."""
    return parsed.where(F.col("reason").isNull()).drop("reason", "line", "file", "folder_day")


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


def quarantine(parsed: DataFrame, found: DataFrame) -> DataFrame:
    """Return bad lines, each a row, and samples that are not whole, each a row: `reason`, `file`, `line`, `lines`."""
    bad = parsed.where(F.col("reason").isNotNull()).select("reason", "file", "line", F.lit(1).cast("long"))
    partial = found.where(~F.col("whole")).select(
        F.lit("partial_sample"), F.lit(None).cast("string"), F.to_json(F.struct(*SAMPLE_KEY)), "lines"
    )
    return bad.union(partial).toDF("reason", "file", "line", "lines")


def _seconds(day: date) -> int:
    return (day - date(1970, 1, 1)).days * 86_400
