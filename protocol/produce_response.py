# SPDX-License-Identifier: Apache-2.0
"""The throttle_time_ms of a Produce response (ProduceResponse.json), which is its last field."""

import struct
from typing import Final

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import TOPIC_ID_SIZE
from weir.protocol.header import SIZE
from weir.protocol.primitives import CLASSIC, COMPACT, Encoding
from weir.protocol.produce_versions import PRODUCE_VERSIONS, ProduceVersion

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
    except MalformedFrame:
        return frame
    if not 0 < at <= len(frame) - SIZE.size or SIZE.unpack_from(frame, at)[0] >= milliseconds:
        return frame
    return frame[:at] + SIZE.pack(milliseconds) + frame[at + SIZE.size :]


def _throttle_time_at(frame: bytes, row: ProduceVersion) -> int:
    encoding: Encoding = COMPACT if row.is_flexible else CLASSIC
    _, at = encoding.read_tags(frame, 2 * SIZE.size)
    topics, at = encoding.read_count(frame, at, _LEAST_TOPIC)
    for _ in range(topics):
        if row.names_topics_by_id:
            at += TOPIC_ID_SIZE
        else:
            _, at = encoding.read_string(frame, at)
        partitions, at = encoding.read_count(frame, at, _PARTITION.size)
        for _ in range(partitions):
            at += _PARTITION.size
            if row.tells_record_errors:
                errors, at = encoding.read_count(frame, at, _BATCH_INDEX_SIZE)
                for _ in range(errors):
                    _, at = encoding.read_nullable(frame, at + _BATCH_INDEX_SIZE)
                    _, at = encoding.read_tags(frame, at)
                _, at = encoding.read_nullable(frame, at)
            _, at = encoding.read_tags(frame, at)
        _, at = encoding.read_tags(frame, at)
    return at
