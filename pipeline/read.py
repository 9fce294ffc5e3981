"""Reads exported samples as a DataFrame; quarantines bad lines; drops duplicates and samples that are not whole.

The schema is that of `samples.schema`. All kinds of lines are rows of one frame: fields that a kind does not have are
null, and fields that no table needs are not read. A line of one partition, as version 1 has them, gets columns.
Three columns are added: `ended_micros` and `ended` (micro- and whole seconds since 1970, UTC), and `micros` (the
interval's length).

Ends are by the time of day, lengths by the monotonic clock. A step of the clock therefore moves samples, but never
stretches them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from operator import and_, or_
from typing import Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipeline.damaged import DAMAGED_FILE
from pipeline.errors import SPARK_ERRORS, BuildError, first_line
from samples.schema import (
    BLOCK,
    KINDS,
    SCHEMA_VERSION,
    IntervalLine,
    LimitLine,
    Line,
    LinkLine,
    PartitionLine,
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

LINE_KEY: Final = (
    *("kind", *SAMPLE_KEY, "side", "peer", "topic", "block", "partition"),
    *("quota", "in_force_from_seconds", "client_id"),
)
"""The columns that identify a line (null where a kind lacks one). Two lines that agree in all of them are duplicates.
"""

PARTIAL_SAMPLE: Final = "partial_sample"
"""The reason that samples which are not whole are quarantined for."""

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
        *("version", "interval_seconds", "cluster_id"),
        *("share", "record_rate_avg"),
        *(f"columns.{name}" for name in ("bytes_complete", "bytes_cut", "batches", "left_out")),
    }
)
"""Only fields that a table is made of are read, which saves a quarter of the time."""

_READ: Final = {
    column.name: _TYPES[column.type] for kind in KINDS for column in columns(kind) if column.name not in UNUSED
}
_COLUMNS: Final = {name.removeprefix("columns."): kind for name, kind in _READ.items() if name.startswith("columns.")}
_MAY_BE_NULL: Final = ("lag_messages", "lag_ms")
_FIELDS: Final[dict[str, T.DataType]] = {name: kind for name, kind in _READ.items() if "." not in name} | {
    "columns": T.StructType([T.StructField(name, kind) for name, kind in _COLUMNS.items()])
}
_TEXTS: Final = [name for name, kind in _FIELDS.items() if isinstance(kind, T.StringType)]
_SCHEMA: Final = T.StructType(
    [T.StructField(name, kind) for name, kind in {**_FIELDS, _CORRUPT: T.StringType()}.items()]
)
PARTITION_KINDS: Final = (PartitionsLine, PartitionLine)
"""The kinds that tell of partitions: that of this version, and that of version 1."""
_COUNTED: Final[tuple[tuple[type[Line], ...], ...]] = (PARTITION_KINDS, (LinkLine,), (QuotaLine,), (LimitLine,))
_OF_BAD_LINES: Final = ("reason", "text", "file", "folder_day", "schema", "min_reader", "end_utc")
_JSON: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


@dataclass(frozen=True, slots=True)
class Lines:
    """The good lines, by kind. Those of `partitions` have columns, which `by_partition` makes rows."""

    partitions: DataFrame
    links: DataFrame
    quotas: DataFrame
    limits: DataFrame
    ends: DataFrame


def read_lines(spark: SparkSession, source: str, day: date, damaged: Collection[str] = ()) -> DataFrame:
    """Return the fields of every line that may belong to `day`, with `_corrupt`, `file` and `folder_day`.

    - `source` is a Hadoop path, or `kafka://host:port[,host:port]/topic`.
    - Files in `date=/hour=` folders are read from an hour before the UTC day to an hour after it, as a file may have
      samples of the next hour. `folder_day` is null where folders name no day.
    - `damaged` files are read up to their damage.

    Raises BuildError.
    """
    try:
        if source.startswith(_KAFKA):
            return _read_kafka(spark, source, day)
        if not damaged:
            return _read_files(spark, source, day)
        # Spark skips errors in the damaged files only. Their good lines are read; samples that are not whole go later.
        whole = [path for path in input_files(spark, source) if path not in damaged]
        cut = _read_files(spark, source, day, *damaged, ignoreCorruptFiles="true")
        return _read_files(spark, source, day, *whole).union(cut) if whole else cut
    except SPARK_ERRORS as error:
        if isinstance(error, AnalysisException) and error.getErrorClass() == "PATH_NOT_FOUND":
            # Hadoop's configuration may put a path without a scheme on another file system than this machine's
            path = (error.getMessageParameters() or {}).get("path", source)
            raise BuildError(f"there is no {source if path.startswith('file:') else path}") from error
        raise BuildError(f"{source} cannot be read: {first_line(error)}") from error


def input_files(spark: SparkSession, source: str) -> list[str]:
    """Return the addresses of a source's files; none where it is a topic."""
    return [] if source.startswith(_KAFKA) else spark.read.schema(_SCHEMA).json(source).inputFiles()


def _read_files(spark: SparkSession, folder: str, day: date, *files: str, **options: str) -> DataFrame:
    """Read a whole folder, or some of its files."""
    # Spark's own reader of JSON lines: `from_json` takes a fifth longer.
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
    # Up to the topic's end: a record that waited for hours has the time at which it was sent. It may hold several
    # lines.
    lines = found.select(F.explode(F.split(F.col("value").cast("string"), "\n")).alias("line"), "timestamp")
    return (
        lines.where(F.trim("line") != "")
        .select(F.from_json("line", _SCHEMA, _JSON).alias("parsed"), "timestamp")
        .select("parsed.*", F.lit(source).alias("file"), F.col("timestamp").cast("date").alias("folder_day"))
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
        .withColumn("ended", F.unix_seconds("ended_at"))
        .withColumn("micros", _micros(F.col("end_seconds") - F.col("begin_seconds")))
        .withColumn("reason", _reason())
        .withColumn("one", F.col("reason").isNull() & (F.col("kind") == kind_of(PartitionLine)))
        .withColumn("columns", F.when(F.col("one"), _one_partition()).otherwise(F.col("columns")))
        .withColumn("block", F.when(F.col("one"), F.floor(F.col("partition") / BLOCK)).otherwise(F.col("block")))
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
    """Parse a UTC time that ends with Z, as one in the session's zone.

    That zone is UTC. To read the zone from the text would take Spark twice as long.
    """
    return F.when(F.col(name).endswith("Z"), F.expr(f"trim(TRAILING 'Z' FROM {name})").cast("timestamp"))


def _micros(seconds: Column) -> Column:
    return F.floor(seconds * 1e6 + 0.5)  # for values >= 0; F.round would make a BigDecimal of each


def _one_partition() -> Column:
    """The columns of a line of version 1."""
    values = {name: F.col(name) for name in _COLUMNS if name != "lag_ms"}
    values["lag_ms"] = F.floor(F.col("lag_seconds") * 1000 + 0.5)
    return F.struct(*(F.array(values[name]).alias(name) for name in _COLUMNS))


def _reason() -> Column:
    missing = reduce(or_, (_lacks(kind) for kind in KINDS))
    negative = (F.col("bytes_throttled") < 0) | (F.col("bytes_unthrottled") < 0)
    too_long = reduce(or_, (F.octet_length(name) > MAX_CHARACTERS for name in _TEXTS))
    is_partial = F.coalesce("kind", "start_id", "end_utc").isNotNull()
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
    nulls = [F.col(name).isNull() for name in required if name in _FIELDS]
    if "columns" in required:
        nulls += [F.col(f"columns.{name}").isNull() for name in _COLUMNS]
    return (F.col("kind") == kind_of(kind)) & reduce(or_, nulls)


def of_day(parsed: DataFrame, day: date) -> DataFrame:
    """Return the good lines of samples that ended on a UTC day, and the bad lines in that day's folder."""
    good = F.col("reason").isNull()
    ended = F.col("ended").between(_seconds(day), _seconds(day + timedelta(days=1)) - 1)
    # Bad lines in folders that name no day are reported for every day.
    lay = F.col("folder_day").isNull() | (F.col("folder_day") == F.lit(day))
    return parsed.where((good & ended) | (~good & lay))


def good_lines(parsed: DataFrame) -> DataFrame:
    """Return the lines that have no `reason`, as they were exported."""
    return parsed.where(F.col("reason").isNull()).drop(*_OF_BAD_LINES)


def by_kind(lines: DataFrame) -> Lines:
    """Split good lines by kind."""

    def of(*kinds: type[Line]) -> DataFrame:
        return lines.where(F.col("kind").isin([kind_of(kind) for kind in kinds]))

    return Lines(of(*PARTITION_KINDS), of(LinkLine), of(QuotaLine), of(LimitLine), of(IntervalLine))


def by_partition(partitions: DataFrame, *names: str) -> DataFrame:
    """Return a row for each partition, with `partition` and the figures `names` beside the columns of its line."""
    figures = F.arrays_zip(*(F.col(f"columns.{name}").alias(name) for name in ("partition", *names)))
    rows = partitions.drop("partition", *names).select("*", F.inline(figures))
    zeros = {name: F.when(F.size(f"columns.{name}") > 0, F.col(name)).otherwise(F.lit(0)) for name in names}
    return rows.withColumns(zeros).drop("columns") if names else rows.drop("columns")


def samples(lines: DataFrame) -> DataFrame:
    """Return a row for each sample: its key, whether it is `whole`, whether lines are there `twice`, and `lines`.

    A sample is whole when it has its end, and as many partitions, links, quotas and limits as the end says. A line that
    is there twice counts once.
    """

    def count(*kinds: type[Line]) -> Column:
        return F.sum(F.when(F.col("kind").isin([kind_of(kind) for kind in kinds]), F.col("size")).otherwise(0))

    told = ("partitions", "links", "quotas", "limits")
    size = F.when(F.col("columns").isNotNull(), F.size("columns.partition")).otherwise(1)
    once = (
        lines.withColumn("size", size)
        .groupBy(*SAMPLE_KEY, "kind", F.xxhash64(*LINE_KEY).alias("line"))
        .agg(F.count(F.lit(1)).alias("copies"), *(F.max(name).alias(name) for name in ("size", *told)))
    )
    counted = once.groupBy(*SAMPLE_KEY).agg(
        F.sum("copies").alias("lines"),
        (F.max("copies") > 1).alias("twice"),
        count(IntervalLine).alias("ends"),
        *(count(*kinds).alias(f"{name}_found") for name, kinds in zip(told, _COUNTED, strict=True)),
        *(F.max(name).alias(name) for name in told),
    )
    expected = {name: F.col(name) for name in told} | {"limits": F.coalesce("limits", F.lit(0))}  # 0 in version 1
    is_whole = reduce(and_, (F.col(f"{name}_found") == expected[name] for name in told)) & (F.col("ends") == 1)
    return counted.select(*SAMPLE_KEY, "lines", F.coalesce(is_whole, F.lit(False)).alias("whole"), "twice")


def missing_samples(found: DataFrame) -> DataFrame:
    """Return one row, `missing`: how many numbers are missing in the samples' sequences.

    Partial samples count as present.
    """
    by_start = found.groupBy("broker_id", "start_id").agg(
        (F.max("sequence") - F.min("sequence") + 1 - F.count(F.lit(1))).alias("missing")
    )
    return by_start.agg(F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"))


def without_partial(lines: DataFrame, found: DataFrame) -> DataFrame:
    """Return the lines of whole samples; `found` is the result of `samples`."""
    partial = found.where(~F.col("whole")).select(*SAMPLE_KEY)
    return lines.join(F.broadcast(partial), [*SAMPLE_KEY], "left_anti")


def without_duplicates(lines: DataFrame) -> DataFrame:
    """Return each line once, however often it was read and from whichever file."""
    return lines.dropDuplicates([*LINE_KEY])


def quarantine(parsed: DataFrame, found: DataFrame, damaged: Collection[str] = ()) -> DataFrame:
    """Return bad lines, partial samples and damaged files, a row each.

    The columns are `reason`, `file`, `line` and `lines`: for how many lines the row stands (0 for a file).
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
