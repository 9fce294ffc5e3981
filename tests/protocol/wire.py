# SPDX-License-Identifier: Apache-2.0
"""Frames for tests, written down field by field and apart from the codec under test."""

import struct

CONSUMER = -1


def frame(payload: bytes) -> bytes:
    """`payload` with its size in front."""
    return struct.pack(">i", len(payload)) + payload


def string(value: bytes | None) -> bytes:
    """A nullable string."""
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value


def compact_string(value: bytes | None) -> bytes:
    """A nullable compact string."""
    return b"\x00" if value is None else varint(len(value) + 1) + value


def varint(value: int) -> bytes:
    """An unsigned varint."""
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def tag_buffer(*tags: tuple[int, bytes]) -> bytes:
    """A tag buffer of (number, bytes)."""
    return varint(len(tags)) + b"".join(varint(number) + varint(len(data)) + data for number, data in tags)


def request(
    api_key: int, api_version: int, correlation_id: int, body: bytes = b"", client_id: bytes | None = b"c"
) -> bytes:
    """A whole request frame with header version 1."""
    return frame(struct.pack(">hhi", api_key, api_version, correlation_id) + string(client_id) + body)


def produce(correlation_id: int, acks: int, *, version: int = 2, records: bytes = b"r" * 20) -> bytes:
    """A Produce request; `records` stands for all that follows acks."""
    head = b""
    if version >= 9:
        head = b"\x00" + compact_string(b"tx")
    elif version >= 3:
        head = string(b"tx")
    return request(0, version, correlation_id, head + struct.pack(">h", acks) + records)


def fetch(
    correlation_id: int,
    replica_id: int,
    *,
    version: int = 3,
    topics: tuple[tuple[bytes, tuple[tuple[int, int, int], ...]], ...] = ((b"orders", ((0, 7, 1000), (1, 9, 1000))),),
    client_id: bytes | None = b"c",
    max_wait_ms: int = 500,
) -> bytes:
    """A Fetch request v0 to v6 in full, v7 to v14 up to where it is looked at."""
    body = b"\x00" if version >= 12 else b""
    body += struct.pack(">iii", replica_id, max_wait_ms, 1)
    if version >= 3:
        body += struct.pack(">i", 2**20)
    if version >= 4:
        body += b"\x00"  # isolation level
    body += struct.pack(">i", len(topics))
    for name, partitions in topics:
        body += string(name) + struct.pack(">i", len(partitions))
        for partition, fetch_offset, max_bytes in partitions:
            log_start_offset = struct.pack(">q", 3) if version >= 5 else b""
            body += struct.pack(">iq", partition, fetch_offset) + log_start_offset + struct.pack(">i", max_bytes)
    return request(1, version, correlation_id, body, client_id)


def response(correlation_id: int, body: bytes = b"") -> bytes:
    """A whole response frame with header version 0."""
    return frame(struct.pack(">i", correlation_id) + body)


def fetch_response(
    correlation_id: int,
    *,
    version: int = 3,
    topics: tuple[tuple[bytes, tuple[tuple[int, int, bytes], ...]], ...] = ((b"orders", ((0, 7, b"x" * 100),)),),
) -> bytes:
    """A Fetch response v0 to v6; partitions are (partition, high watermark, records)."""
    body = struct.pack(">i", 0) if version >= 1 else b""
    body += struct.pack(">i", len(topics))
    for name, partitions in topics:
        body += string(name) + struct.pack(">i", len(partitions))
        for partition, high_watermark, records in partitions:
            body += struct.pack(">ihq", partition, 0, high_watermark)
            body += struct.pack(">q", high_watermark) if version >= 4 else b""  # last stable offset
            body += struct.pack(">q", -1) if version >= 5 else b""  # log start offset
            body += struct.pack(">i", -1) if version >= 4 else b""  # aborted transactions
            body += struct.pack(">i", len(records)) + records
    return response(correlation_id, body)
