"""The schema of exported samples, for those who write them and those who read them.

A sidecar takes one sample per interval: a set of JSON lines. Each line is one of the structs here, told apart by
`kind`. All lines of a set share the key (`broker_id`, `start_id`, `sequence`) and the interval. A set ends with its
IntervalLine, which says how many lines of each other kind belong to it. A line that was written twice has the same key
twice.

Fields may be added, each with a default; SCHEMA_VERSION then grows. No field is renamed or gets another meaning, so
lines of older versions stay readable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from quota.settings import SideName

SCHEMA_VERSION = 2


class NewerSchema(Exception):
    """A line of a version that this program does not know; `version` is its number."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version

    def __str__(self) -> str:
        return f"the line has schema {self.version}, and the newest known here is {SCHEMA_VERSION}"


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that every line begins with."""

    schema: Annotated[int, Meta(description="version of this schema")] = SCHEMA_VERSION
    broker_id: Annotated[int, Meta(description="the broker beside the sidecar")]
    start_id: Annotated[str, Meta(description="one start of the sidecar's process; later ones sort after it")]
    sequence: Annotated[int, Meta(description="number of the sample in its process, from 1 on without gaps")]
    begin_seconds: Annotated[float, Meta(description="where the interval begins, on the process's monotonic clock")]
    end_seconds: Annotated[float, Meta(description="where it ends: there the next one begins")]
    end_utc: Annotated[str, Meta(description="when it ended, UTC, as 2026-01-31T23:59:59.123Z")]


class _Bytes(Line, frozen=True, kw_only=True):
    """What one side moved with one peer, in record bytes. Throttled + unthrottled = complete + cut."""

    side: Annotated[SideName, Meta(description="whose quota: `leader` for what the broker sends, or `follower`")]
    peer: Annotated[int, Meta(description="the other broker: the follower on the leader's side, or the leader")]
    bytes_throttled: Annotated[int, Meta(description="record bytes while the partition was listed as throttled")]
    bytes_unthrottled: Annotated[int, Meta(description="record bytes while it was not")]
    bytes_complete: Annotated[
        int, Meta(description="of both, whole batches: what the follower keeps. In unthrottled topics cut tails too")
    ]
    bytes_cut: Annotated[int, Meta(description="of both, tails of batches, which the follower throws away")]
    left_out: Annotated[int, Meta(description="partitions left out of a fetch for want of quota, times")]


class PartitionLine(_Bytes, frozen=True, kw_only=True, tag="partition"):
    """One partition that moved bytes, was left out, or caught up in the interval, with one peer on one side."""

    topic: Annotated[str, Meta(description="its name; what goes by an id of unknown name is in its link's line alone")]
    partition: Annotated[int, Meta(description="its id")]
    batches: Annotated[int, Meta(description="whole batches in `bytes_complete`; in unthrottled topics 0")]
    lag_messages: Annotated[int | None, Meta(description="offsets behind the high watermark at the end")] = None
    lag_seconds: Annotated[float | None, Meta(description="since when it was not caught up then (KIP-16)")] = None


class LinkLine(_Bytes, frozen=True, kw_only=True, tag="link"):
    """All connections with one peer on one side.

    Written for a peer that has a connection, or had one in the interval.
    """

    connections: Annotated[int, Meta(description="open at the end")]
    partitions_behind: Annotated[int, Meta(description="throttled, and known not to be in sync, at the end")]
    fetches: Annotated[int, Meta(description="replica fetches whose answers passed whole")]
    fetches_held: Annotated[int, Meta(description="replica fetches held until there was budget")]


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
        Meta(description="`observe`: it held nothing back; `shared`: `rate` is that of all leaders. Since version 2"),
    ] = None


class IntervalLine(Line, frozen=True, kw_only=True, tag="interval"):
    """The end of a sample: a set without it is not whole. Where nothing happened it is the only line."""

    version: Annotated[str, Meta(description="the sidecar's")]
    interval_seconds: Annotated[float, Meta(description="as configured")]
    partitions: Annotated[int, Meta(description="lines of kind `partition` in the set")]
    links: Annotated[int, Meta(description="lines of kind `link`")]
    quotas: Annotated[int, Meta(description="lines of kind `quota`")]


AnyLine = PartitionLine | LinkLine | QuotaLine | IntervalLine
KINDS: tuple[type[Line], ...] = (PartitionLine, LinkLine, QuotaLine, IntervalLine)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyLine)


class _Version(msgspec.Struct):
    schema: int


_version_decoder = msgspec.json.Decoder(_Version)


def encode_lines(lines: Iterable[Line]) -> bytes:
    """Return the lines as JSON, each ended by a line feed."""
    return _encoder.encode_lines(lines)


def decode_line(text: bytes | str) -> AnyLine:
    """Read one line of this version or an older one.

    Raises NewerSchema; msgspec.DecodeError for a text that is no such line.
    """
    try:
        line: AnyLine = _decoder.decode(text)
    except msgspec.ValidationError:
        version = _version_decoder.decode(text).schema
        if version > SCHEMA_VERSION:
            raise NewerSchema(version) from None
        raise
    if line.schema > SCHEMA_VERSION:
        raise NewerSchema(line.schema)
    return line


class Column(NamedTuple):
    """One field of a kind of line. `type` is `int`, `float`, `str` or `list[int]`."""

    name: str
    type: str
    is_nullable: bool
    description: str


def kind_of(line: type[Line]) -> str:
    """Return the value of `kind` in lines of this struct."""
    return str(line.__struct_config__.tag)


def columns(line: type[Line]) -> list[Column]:
    """Return the fields of a kind of line, `kind` among them, in the order in which they are written."""
    hints = get_type_hints(line, include_extras=True)
    found = [Column("kind", "str", False, f"`{kind_of(line)}`")]
    for name in line.__struct_fields__:
        expected, meta = get_args(hints[name])
        is_nullable = type(None) in get_args(expected)
        if is_nullable:
            (expected,) = (arm for arm in get_args(expected) if arm is not type(None))
        found.append(Column(name, _type_name(expected), is_nullable, meta.description))
    return found


def _type_name(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return "str"
    return "list[int]" if get_origin(expected) is tuple else str(expected.__name__)
