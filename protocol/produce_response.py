# SPDX-License-Identifier: Apache-2.0
"""The throttle_time_ms of a Produce response (ProduceResponse.json), which is its last field."""

import struct
from typing import Final

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import TOPIC_ID_SIZE
from weir.protocol.header import SIZE
from weir.protocol.primitives import CLASSIC, COMPACT, STRING_LENGTH
from weir.protocol.produce_versions import PRODUCE_VERSIONS, ProduceVersion
from weir.protocol.varint import after_tags, read_unsigned_varint

_PARTITION: Final = struct.Struct(">ihqqq")  # index, error_code, base_offset, log_append_time_ms, log_start_offset
_BATCH_INDEX_SIZE: Final = 4
_LEAST_TOPIC: Final = 3  # bytes: an empty name, a count, and a tag buffer


def with_throttle_time(frame: bytes, version: int, milliseconds: int) -> bytes:
    """Return a Produce response v5 to v13 (with its size) in which the client waits for `milliseconds` at least.

    A response that cannot be read is returned as it is.
    """
    row = PRODUCE_VERSIONS.get(version)
    if row is None or not row.tells_offsets or milliseconds <= 0:
        return frame
    try:
        at = _throttle_time_at(frame, row)
    except (MalformedFrame, IndexError, struct.error):
        return frame
    if not 0 < at <= len(frame) - SIZE.size or SIZE.unpack_from(frame, at)[0] >= milliseconds:
        return frame
    return frame[:at] + SIZE.pack(milliseconds) + frame[at + SIZE.size :]


def _throttle_time_at(frame: bytes, row: ProduceVersion) -> int:
    at = 2 * SIZE.size
    if not row.is_flexible:
        topics, at = CLASSIC.read_count(frame, at, _LEAST_TOPIC)
        for _ in range(topics):
            _, at = CLASSIC.read_string(frame, at)
            partitions, at = CLASSIC.read_count(frame, at, _PARTITION.size)
            for _ in range(partitions):
                at += _PARTITION.size
                if row.tells_record_errors:
                    errors, at = CLASSIC.read_count(frame, at, _BATCH_INDEX_SIZE)
                    for _ in range(errors):
                        at = _after_nullable(frame, at + _BATCH_INDEX_SIZE)
                    at = _after_nullable(frame, at)
        return at
    at = after_tags(frame, at)
    topics, at = COMPACT.read_count(frame, at, _LEAST_TOPIC)
    for _ in range(topics):
        if row.names_topics_by_id:
            at += TOPIC_ID_SIZE
        else:
            _, at = COMPACT.read_string(frame, at)
        partitions, at = COMPACT.read_count(frame, at, _PARTITION.size)
        for _ in range(partitions):
            at += _PARTITION.size
            errors, at = COMPACT.read_count(frame, at, _BATCH_INDEX_SIZE)
            for _ in range(errors):
                at = after_tags(frame, _after_compact_nullable(frame, at + _BATCH_INDEX_SIZE))
            at = after_tags(frame, _after_compact_nullable(frame, at))
        at = after_tags(frame, at)
    return at


def _after_nullable(frame: bytes, at: int) -> int:
    return at + STRING_LENGTH.size + max(0, int(STRING_LENGTH.unpack_from(frame, at)[0]))


def _after_compact_nullable(frame: bytes, at: int) -> int:
    length_and_one, at = read_unsigned_varint(frame, at)
    return at + max(0, length_and_one - 1)
