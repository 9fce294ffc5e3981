# SPDX-License-Identifier: Apache-2.0
"""The schema of exported samples, for those who write them and those who read them.

A sidecar takes one sample per interval: a set of JSON lines. Each line is one of the structs here, told apart by
`kind`. All lines of a set share the key (`broker_id`, `start_id`, `sequence`) and the interval. A set ends with its
IntervalLine, which says how much of each other kind belongs to it. A line that was written twice has the same key
twice.

Partitions are told in columns: a PartitionsLine has an array for each figure, and its partitions' ids in another.

Fields may be added, each with a default; SCHEMA_VERSION then grows, and readers of older versions leave the new fields
alone. A change that they would misread also raises MIN_READER. No field is renamed or gets another meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from weir.quota.settings import SideName

SCHEMA_VERSION = 3
MIN_READER = 2
"""The oldest version whose readers understand what is written now."""

Role = Literal["sink", "source", "dlq", "mirror", "other"]
"""What a client is, by the ids that Kafka's Connect and MirrorMaker 2 give."""

BLOCK: Final = 1000
"""The most partitions of a line. Block n of a topic is its partitions from n x BLOCK up to the next block's first one.
"""


class NewerSchema(Exception):
    """A line that a reader of this version does not understand; `version` is that of the line."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version

    def __str__(self) -> str:
        return f"the line has schema {self.version}, and the newest known here is {SCHEMA_VERSION}"


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that every line begins with."""

    schema: Annotated[int, Meta(description="version of this schema")] = SCHEMA_VERSION
    min_reader: Annotated[int, Meta(description="oldest version of a reader that understands the line")] = MIN_READER
    broker_id: Annotated[int, Meta(description="the broker beside the sidecar")]
    start_id: Annotated[str, Meta(description="one start of the sidecar's process; later ones sort after it")]
    sequence: Annotated[int, Meta(description="number of the sample in its process, from 1 on without gaps")]
    begin_seconds: Annotated[float, Meta(description="where the interval begins, on the process's monotonic clock")]
    end_seconds: Annotated[float, Meta(description="where it ends: there the next one begins")]
    end_utc: Annotated[str, Meta(description="when it ended, UTC, as 2026-01-31T23:59:59.123Z")]


class _OfPeer(Line, frozen=True, kw_only=True):
    """What one side moved with one peer."""

    side: Annotated[SideName, Meta(description="whose quota: `leader` for what the broker sends, or `follower`")]
    peer: Annotated[int, Meta(description="the other broker: the follower on the leader's side, or the leader")]


class _Bytes(_OfPeer, frozen=True, kw_only=True):
    """Record bytes. Throttled + unthrottled = complete + cut."""

    bytes_throttled: Annotated[int, Meta(description="record bytes while the partition was listed as throttled")]
    bytes_unthrottled: Annotated[int, Meta(description="record bytes while it was not")]
    bytes_complete: Annotated[
        int, Meta(description="of both, whole batches: what the follower keeps. In unthrottled topics cut tails too")
    ]
    bytes_cut: Annotated[int, Meta(description="of both, tails of batches, which the follower throws away")]


class PartitionLine(_Bytes, frozen=True, kw_only=True):
    """One partition of a PartitionsLine. It is not written as a line of its own."""

    topic: str
    partition: int
    batches: int
    lag_messages: int | None = None
    lag_seconds: float | None = None


Numbers = tuple[int, ...]


class PartitionColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a line's partitions: entry n of each column is of the same partition.

    A column of nothing but zeros is written as an empty one.
    """

    partition: Annotated[Numbers, Meta(description="their ids, each once; this column is never empty")]
    bytes_throttled: Annotated[Numbers, Meta(description="record bytes while the partition was listed as throttled")]
    bytes_unthrottled: Annotated[Numbers, Meta(description="record bytes while it was not")]
    bytes_complete: Annotated[
        Numbers,
        Meta(description="of both, whole batches: what the follower keeps. In unthrottled topics cut tails too"),
    ]
    bytes_cut: Annotated[Numbers, Meta(description="of both, tails of batches, which the follower throws away")]
    batches: Annotated[Numbers, Meta(description="whole batches in `bytes_complete`; in unthrottled topics 0")]
    lag_messages: Annotated[
        tuple[int | None, ...], Meta(description="offsets behind the high watermark at the end; null: not known")
    ]
    lag_ms: Annotated[
        tuple[int | None, ...], Meta(description="since when it was not caught up then (KIP-16); null: not known")
    ]


class PartitionsLine(_OfPeer, frozen=True, kw_only=True, tag="partitions"):
    """The partitions of a topic with one peer on one side.

    Those that moved bytes or caught up in the interval, or are behind at its end. A line has those of one block, so no
    partition is in two lines of a set.
    """

    topic: Annotated[str, Meta(description="its name; what goes by an id of unknown name is in its link's line alone")]
    block: Annotated[int, Meta(description="block n has the partitions from 1000 n to 1000 n + 999")]
    columns: Annotated[PartitionColumns, Meta(description="a figure of each partition in each column")]

    def rows(self) -> Iterator[PartitionLine]:
        """Yield each partition. ValueError where columns differ in length."""
        shared = {name: getattr(self, name) for name in Line.__struct_fields__}
        ids = self.columns.partition
        columns = {
            name: getattr(self.columns, name) or (0,) * len(ids)
            for name in PartitionColumns.__struct_fields__
            if name != "partition"
        }
        for partition, *values in zip(ids, *columns.values(), strict=True):
            figures = dict(zip(columns, values, strict=True))
            lag_ms = figures.pop("lag_ms")
            yield PartitionLine(
                **shared,
                **figures,
                side=self.side,
                peer=self.peer,
                topic=self.topic,
                partition=partition,
                lag_seconds=None if lag_ms is None else lag_ms / 1000,
            )


class LinkLine(_Bytes, frozen=True, kw_only=True, tag="link"):
    """All connections with one peer on one side.

    Written for a peer that has a connection, or had one in the interval; and for a follower that fell silent, while it
    is known how far behind it is.
    """

    left_out: Annotated[int, Meta(description="partitions left out of a fetch for want of quota, times")]
    connections: Annotated[int, Meta(description="open at the end")]
    partitions_behind: Annotated[int, Meta(description="throttled, and known not to be in sync, at the end")]
    fetches: Annotated[int, Meta(description="replica fetches whose answers passed whole")]
    fetches_held: Annotated[int, Meta(description="replica fetches held until there was budget")]
    away_seconds: Annotated[
        float | None,
        Meta(description="since its last fetch, where it has no connection at the end"),
    ] = None


class QuotaLine(Line, frozen=True, kw_only=True, tag="quota"):
    """One quota while it stayed the same. If it was changed in the interval, it has several lines with one id."""

    side: Annotated[SideName, Meta(description="`leader` or `follower`")]
    quota: Annotated[
        str,
        Meta(
            description="its id: the name of the setting, as `leader.replication.throttled.rate`, or its own name; with"
            " `/` and the follower where its leaders keep it"
        ),
    ]
    rate: Annotated[int, Meta(description="bytes/s")]
    policy: Annotated[str, Meta(description="`strict` or `kip73`")]
    in_force_from_seconds: Annotated[float, Meta(description="monotonic, within the interval")]
    in_force_until_seconds: Annotated[float, Meta(description="the same; `end_seconds` where it still is in force")]
    bytes: Annotated[int, Meta(description="record bytes of throttled partitions that passed under it")]
    first_second: Annotated[int, Meta(description="second n of the monotonic clock is from n to n + 1")]
    bytes_by_second: Annotated[
        tuple[int, ...],
        Meta(
            description="the bytes of `first_second` and those after it. One that an interval or a change cuts in two"
            " is in both lines: add them up"
        ),
    ]
    mode: Annotated[
        str | None,
        Meta(description="`observe`: it held nothing back; `shared`: `rate` is that of all leaders"),
    ] = None


class LimitLine(Line, frozen=True, kw_only=True, tag="limit"):
    """A client with a limit by records that moved some, or was kept waiting, in the interval.

    A client that several entries of `[[limits.client]]` fit has one line, with the entry that allows least.
    """

    client_id: Annotated[str, Meta(description="as the client says; at most 255 characters")]
    role: Annotated[Role, Meta(description="by its id: `sink`, `source`, `dlq`, `mirror` or `other`")]
    entry: Annotated[str, Meta(description="`client_id` of the entry in the configuration")]
    limit_group: Annotated[str, Meta(description="what has the limit: the id itself, or all tasks of a connector")]
    records: Annotated[int, Meta(description="records that passed")]
    record_rate_avg: Annotated[float, Meta(description="records/s over the interval")]
    record_rate_max: Annotated[
        int, Meta(description="records of the greatest second; of one that an interval cuts in two, all of it")
    ]
    throttled_ratio: Annotated[float, Meta(description="part of the interval in which it was kept waiting: 0 to 1")]
    share: Annotated[float, Meta(description="part of the limits that was to be used at this broker at the end")]
    connector: Annotated[str | None, Meta(description="the connector that its id names")] = None
    task: Annotated[int | None, Meta(description="the task that its id names")] = None
    record_rate_limit: Annotated[
        float | None, Meta(description="records/s for what has the limit, over all brokers, at the end")
    ] = None


class IntervalLine(Line, frozen=True, kw_only=True, tag="interval"):
    """The end of a sample: a set without it is not whole. Where nothing happened it is the only line."""

    version: Annotated[str, Meta(description="the sidecar's")]
    interval_seconds: Annotated[float, Meta(description="as configured")]
    partitions: Annotated[int, Meta(description="partitions in the set's lines of kind `partitions`")]
    links: Annotated[int, Meta(description="lines of kind `link`")]
    quotas: Annotated[int, Meta(description="lines of kind `quota`")]
    limits: Annotated[int, Meta(description="lines of kind `limit`")] = 0
    cluster_id: Annotated[str | None, Meta(description="the cluster's id, where the sidecar knows it")] = None
    client_bytes_in: Annotated[
        int | None, Meta(description="bytes from clients through the sidecar; null: none pass it")
    ] = None
    client_bytes_out: Annotated[int | None, Meta(description="bytes to these clients")] = None


_Written = PartitionsLine | LinkLine | QuotaLine | LimitLine | IntervalLine
AnyLine = _Written | PartitionLine
KINDS: tuple[type[Line], ...] = (PartitionsLine, LinkLine, QuotaLine, LimitLine, IntervalLine)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Written)


class _Version(msgspec.Struct):
    schema: int
    min_reader: int = 1


_version_decoder = msgspec.json.Decoder(_Version)


def encode_lines(lines: Iterable[Line]) -> bytes:
    """Return the lines as JSON, each ended by a line feed."""
    return _encoder.encode_lines(lines)


def decode_line(text: bytes | str) -> AnyLine:
    """Read one line of this version, or of a newer one that only added fields.

    Raises NewerSchema; msgspec.DecodeError for a text that is no such line.
    """
    try:
        line: AnyLine = _decoder.decode(text)
    except msgspec.ValidationError:
        found = _version_decoder.decode(text)
        if found.schema > SCHEMA_VERSION:
            raise NewerSchema(found.schema) from None
        raise
    if line.min_reader > SCHEMA_VERSION:
        raise NewerSchema(line.schema)
    return line


def by_partition(lines: Iterable[AnyLine]) -> Iterator[AnyLine]:
    """Yield the lines, with one for each partition in place of those in columns."""
    for line in lines:
        if isinstance(line, PartitionsLine):
            yield from line.rows()
        else:
            yield line


class Column(NamedTuple):
    """One field of a kind of line. `type` is `int`, `float`, `str`, `list[int]` or `list[int or null]`.

    A field within another has a name with a dot.
    """

    name: str
    type: str
    is_nullable: bool
    description: str


def kind_of(line: type[Line]) -> str:
    """Return the value of `kind` in lines of this struct."""
    return str(line.__struct_config__.tag)


def columns(line: type[Line]) -> list[Column]:
    """Return the fields of a kind of line, `kind` among them, in the order in which they are written."""
    return [Column("kind", "str", False, f"`{kind_of(line)}`"), *_fields(line)]


def _fields(struct: type[msgspec.Struct], within: str = "") -> Iterator[Column]:
    hints = get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        expected, meta = get_args(hints[name])
        if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
            yield from _fields(expected, f"{name}.")
            continue
        is_nullable = type(None) in get_args(expected)
        if is_nullable:
            (expected,) = (arm for arm in get_args(expected) if arm is not type(None))
        yield Column(f"{within}{name}", _type_name(expected), is_nullable, meta.description)


def _type_name(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return "str"
    if get_origin(expected) is tuple:
        return "list[int]" if get_args(expected)[0] is int else "list[int or null]"
    return str(expected.__name__)
