# SPDX-License-Identifier: Apache-2.0
"""Made-up Fetch responses v0 to v18: entries without records, for partitions that the broker was not asked for."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from weir.protocol.fetch_versions import FetchVersion, fetch_version
from weir.protocol.header import SIZE
from weir.protocol.primitives import CLASSIC, COMPACT, NO_TAGS
from weir.protocol.request_topics import write_name

_NO_ERROR: Final = 0
NOT_LEADER_OR_FOLLOWER: Final = 6
_NO_LOG_START_OFFSET: Final = -1  # legal; followers then keep the one that they have
_NO_TRANSACTIONS: Final = -1  # null, which is what brokers send to replicas
_NO_REPLICA: Final = -1


class ResponseTopic(NamedTuple):
    """One made-up topic of a response. `entries` come from `made_up_entries`; `name` is as in RequestTopic."""

    name: bytes
    entries: bytes


def made_up_entries(
    version: int, high_watermarks: Iterable[tuple[int, int]], *, error_if_unknown: int = _NO_ERROR
) -> bytes:
    """Encode a response's partitions, each (partition, high watermark), without records.

    The last stable offset equals the high watermark, and the log start offset is -1. There is no error, but
    `error_if_unknown` where the high watermark is -1. A consumer ignores that. A follower would go back to its log
    start, and old ones truncate there: with NOT_LEADER_OR_FOLLOWER it applies nothing, and asks again after
    `replica.fetch.backoff.ms`.
    """
    row = fetch_version(version)
    pack, fields = row.response_partition.layout.pack, len(row.response_partition.names)
    rest = _behind_fixed_fields(row.api_version)
    return b"".join(
        [
            pack(*(partition, _NO_ERROR if mark >= 0 else error_if_unknown, mark, mark, _NO_LOG_START_OFFSET)[:fields])
            + rest
            for partition, mark in high_watermarks
        ]
    )


def encode_response_topics(version: int, topics: Sequence[ResponseTopic]) -> bytes:
    """Encode made-up topics as in a response's topics array, without the array's count.

    Raises ValueError when an entry announces records, as a follower would take the next topic's bytes for these;
    UnsupportedVersion for a version not in FETCH_VERSIONS.
    """
    parts: list[bytes] = []
    _write_topics(parts, fetch_version(version), topics)
    return b"".join(parts)


def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_time_ms: int,
    topics: Sequence[ResponseTopic],
    *,
    error_code: int = 0,
    session_id: int = 0,
) -> bytes:
    """Encode a whole made-up Fetch response with its 4-byte size.

    v0 has no field for `throttle_time_ms`, and versions below v7 have none for `error_code` and `session_id`. Raises
    ValueError when an entry announces records, UnsupportedVersion for a version not in FETCH_VERSIONS.
    """
    row = fetch_version(version)
    encoding = COMPACT if row.is_flexible else CLASSIC
    head = {"throttle_time_ms": throttle_time_ms, "error_code": error_code, "session_id": session_id}
    parts = [
        b"",  # the frame's size, filled in at the end
        SIZE.pack(correlation_id),
        encoding.tags(b""),
        row.response_head.layout.pack(*[head[name] for name in row.response_head.names]),
        encoding.count(len(topics)),
    ]
    if topics:  # most made-up answers of one link among hundreds have none
        _write_topics(parts, row, topics)
    parts.append(encoding.tags(b""))
    parts[0] = SIZE.pack(sum(map(len, parts)))
    return b"".join(parts)


@lru_cache
def _behind_fixed_fields(api_version: int) -> bytes:
    """Return what follows the fixed fields in every made-up partition."""
    row = fetch_version(api_version)
    encoding = COMPACT if row.is_flexible else CLASSIC
    parts: list[bytes] = []
    if row.has_aborted_transactions:
        parts.append(encoding.count(_NO_TRANSACTIONS))
    if row.has_preferred_read_replica:
        parts.append(SIZE.pack(_NO_REPLICA))
    parts.append(encoding.count(0))  # the size of the records: empty, not null
    parts.append(encoding.tags(b""))
    return b"".join(parts)


def _all_end_with(rest: bytes, entries: bytes, stride: int) -> bool:
    first = stride - len(rest)
    return not any(entries[first + at :: stride].strip(rest[at : at + 1]) for at in range(len(rest)))


def _write_topics(parts: list[bytes], row: FetchVersion, topics: Sequence[ResponseTopic]) -> None:
    rest = _behind_fixed_fields(row.api_version)
    stride = row.response_partition.layout.size + len(rest)
    # all topics at once: one by one, 1,000 topics take 0.6 ms
    if not _all_end_with(rest, b"".join([topic.entries for topic in topics]), stride):
        name = next(topic.name for topic in topics if not _all_end_with(rest, topic.entries, stride))
        raise ValueError(f"A made-up response has no records, but the entries of topic {name!r} announce some.")
    if row.is_flexible:
        for name, block in topics:
            parts += (write_name(name, row), COMPACT.count(len(block) // stride), block, NO_TAGS)
    else:
        string, count = CLASSIC.string, CLASSIC.count
        for name, block in topics:
            parts += (string(name), count(len(block) // stride), block)
