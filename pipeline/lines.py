# SPDX-License-Identifier: Apache-2.0
"""Exported lines as a DataFrame, with the reason why each bad one is bad.

The schema is that of `weir.samples.schema`. All kinds of lines are rows of one frame: fields that a kind does not have
are null, and fields that no table needs are not read.
Three columns are added: `ended_micros` (microseconds since 1970, UTC), `micros` (the interval's length), and `ended`
(the second in which its last microsecond lies: of a sample that ends at midnight, the last one of the day).

Ends are by the time of day, lengths by the monotonic clock. A step of the clock therefore moves samples, but never
stretches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

import msgspec

from weir.pipeline.days import Days
from weir.pipeline.engine import Column, DataFrame, F
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

CORRUPT: Final = "_corrupt"
"""The column with the text of a line that is no JSON, or has a value of another type."""
_TYPES: Final = {
    "int": "bigint",
    "float": "double",
    "str": "string",
    "list[int]": "array<bigint>",
    "list[int or null]": "array<bigint>",
}
UNUSED: Final = frozenset(
    {
        *("bytes_complete", "bytes_cut", "batches"),
        *("connections", "partitions_behind", "fetches", "fetches_held"),
        *("version", "interval_seconds"),
        *("share", "record_rate_avg"),
        *(f"columns.{name}" for name in ("bytes_complete", "bytes_cut", "batches")),
    }
)
"""Only fields that a table is made of are read, which saves a quarter of the time."""

_READ: Final = {
    column.name: _TYPES[column.type] for kind in KINDS for column in columns(kind) if column.name not in UNUSED
}
COLUMNS: Final = {name.removeprefix("columns."): kind for name, kind in _READ.items() if name.startswith("columns.")}
_NOT_NEGATIVE: Final = (
    "bytes_throttled",
    "bytes_unthrottled",
    "bytes",
    "records",
    "client_bytes_in",
    "client_bytes_out",
)
_MAY_BE_NULL: Final = ("lag_messages", "lag_ms")
FIELDS: Final[dict[str, str]] = {name: kind for name, kind in _READ.items() if "." not in name} | {
    "columns": f"struct<{','.join(f'{name}:{kind}' for name, kind in COLUMNS.items())}>"
}
"""What is read of a line, with Spark's name of its type."""
_TEXTS: Final = [name for name, kind in FIELDS.items() if kind == "string"]
_OF_BAD_LINES: Final = ("reason", "text", "file", "folder_hour", "schema", "min_reader", "end_utc")


@dataclass(frozen=True, slots=True)
class Lines:
    """The good lines, by kind. Those of `partitions` have columns, which `by_partition` makes rows."""

    partitions: DataFrame
    links: DataFrame
    quotas: DataFrame
    limits: DataFrame
    ends: DataFrame


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
            F.when(is_bad, F.substring(CORRUPT, 1, MAX_CHARACTERS)).alias("text"),
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
    return F.when(is_whole, F.expr(f"left({name}, length({name}) - 1)").cast("timestamp"))


def _micros(seconds: Column) -> Column:
    return F.floor(seconds * 1e6 + 0.5)  # for values >= 0; F.round would make a BigDecimal of each


def _reason() -> Column:
    missing = reduce(or_, (_lacks(kind) for kind in KINDS))
    negative = reduce(or_, (F.coalesce(F.col(name) < 0, F.lit(False)) for name in _NOT_NEGATIVE))
    too_long = reduce(or_, (F.octet_length(name) > MAX_CHARACTERS for name in _TEXTS))
    # of a line that breaks off Spark tells what it has read until then
    is_partial = F.coalesce("kind", "start_id", "end_utc").isNotNull() & F.rtrim(CORRUPT).endswith("}")
    is_known = F.coalesce(F.col("kind").isin([kind_of(kind) for kind in KINDS]), F.lit(False))
    return (
        F.when(F.coalesce("min_reader", F.lit(1)) > SCHEMA_VERSION, "newer_schema")
        .when(F.col(CORRUPT).isNotNull(), F.when(is_partial, "wrong_type").otherwise("not_json"))
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
    figures = [F.col(f"columns.{name}") for name in COLUMNS if name != "partition"]
    known = [F.col(f"columns.{name}") for name in COLUMNS if name not in _MAY_BE_NULL]
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
        nulls += [F.col(f"columns.{name}").isNull() for name in COLUMNS]
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
