# SPDX-License-Identifier: Apache-2.0
"""The first bytes of a request: as many as are needed to know how to treat it.

Two layouts are known beyond the fixed header (strings and tags in front of a field are skipped):

- Produce: its `acks` says whether a response will come (ProduceRequest.json). Before it are the client id, the header's
  tags (v9+), and the transactional id (v3+).
- Fetch: its `replica_id` says whether a replica sent it (FetchRequest.json). Up to v14 it follows the client id and,
  from v12 on, the header's tags. From v15 on it is a tag at the very end.
"""

import struct
from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

from weir.protocol.errors import InvalidFrameSize, MalformedFrame
from weir.protocol.fetch_versions import FETCH_VERSIONS, FetchVersion
from weir.protocol.header import FETCH, FIXED_HEADER, PRODUCE, SIZE
from weir.protocol.produce_versions import PRODUCE_VERSIONS, nearest_produce_version
from weir.protocol.varint import after_tags, read_unsigned_varint

Head: TypeAlias = bytes | bytearray | memoryview
"""A frame from its size prefix on; it may be cut off."""

API_KEY_END: Final = SIZE.size + 2
FIXED_HEAD: Final = SIZE.size + FIXED_HEADER.size
"""Bytes of the size prefix, the API's key and version, and the correlation id."""


MOST_BEFORE: Final = 100
"""The most requests that `before_others` steps over."""

_LARGEST_HEAD: Final = 2**17
"""Bytes: two strings of 32,767 bytes each fit in. No request's head is held back beyond that."""

_FIXED: Final = struct.Struct(">ihhi")
_SIZE_AND_KEY: Final = struct.Struct(">ih")
_INT16: Final = struct.Struct(">h")
_NO_ACKS: Final = 0


class RequestHead(NamedTuple):
    """What a request's first bytes say. `frame_size` is in bytes, with its own 4."""

    frame_size: int
    api_key: int
    api_version: int
    correlation_id: int
    expects_response: bool = True
    """False only for a Produce request with acks=0."""
    replica_id: int | None = None
    """The sender of a Fetch request, -1 for a consumer. Unknown above v14, where it is not in the head."""


def read_request_head(head: Head) -> RequestHead | int:
    """Read the start of a request. If it is too short, returns how many bytes have to be there to go on.

    Raises InvalidFrameSize, and MalformedFrame when the frame ends before the fields needed. An unknown version may
    have another layout; it is left to the broker.
    """
    have = len(head)
    if have < FIXED_HEAD:
        if have < SIZE.size:
            return SIZE.size
        _check_size(SIZE.unpack_from(head)[0])
        return API_KEY_END if have < API_KEY_END else FIXED_HEAD
    size, api_key, api_version, correlation_id = _FIXED.unpack_from(head)
    _check_size(size)
    frame_size = SIZE.size + size
    try:
        if api_key == PRODUCE:
            end = _end_of_acks(head, api_version)
        elif api_key == FETCH and (row := FETCH_VERSIONS.get(api_version)) and not row.has_replica_state:
            end = _end_of_replica_id(head, row)
        else:
            return RequestHead(frame_size, api_key, api_version, correlation_id)
    except MalformedFrame as error:  # its offset includes the size prefix
        raise MalformedFrame(error.reason, error.offset - SIZE.size) from None

    if end > frame_size or end > _LARGEST_HEAD:
        if api_key == PRODUCE and api_version not in PRODUCE_VERSIONS:
            return RequestHead(frame_size, api_key, api_version, correlation_id)
        raise MalformedFrame(f"the fields before byte {end - SIZE.size} do not fit into the frame", size)
    if end > have:
        return end
    if api_key == PRODUCE:
        (acks,) = _INT16.unpack_from(head, end - _INT16.size)
        return RequestHead(frame_size, api_key, api_version, correlation_id, expects_response=acks != _NO_ACKS)
    (replica_id,) = SIZE.unpack_from(head, end - SIZE.size)
    return RequestHead(frame_size, api_key, api_version, correlation_id, replica_id=replica_id)


def before_others(requests: Head, api_keys: Collection[int]) -> int | None:
    """Return how many requests of these APIs come before the first one of another; None where none of another is seen.

    `requests` may end within one.
    """
    at = 0
    for before in range(MOST_BEFORE):
        if at + API_KEY_END > len(requests):
            break
        size, api_key = _SIZE_AND_KEY.unpack_from(requests, at)
        if size < FIXED_HEADER.size:
            break
        if api_key not in api_keys:
            return before
        at += SIZE.size + size
    return None


def _check_size(size: int) -> None:
    if size < FIXED_HEADER.size:
        raise InvalidFrameSize(size)


# Each of these returns the offset after a field, as far as that is known. An offset beyond the end of `head` means what
# it means in protocol/varint.py.


def transactional_id(head: Head, at: int, api_version: int) -> tuple[int, int]:
    """Return 1 + the length of a Produce's transactional id, 0 where there is none, and the offset after it.

    The client id ends at `at`.
    """
    row = nearest_produce_version(api_version)
    if row.is_flexible:
        length_and_one, at = read_unsigned_varint(head, after_tags(head, at))
        return length_and_one, at + max(0, length_and_one - 1)
    if not row.is_transactional:
        return 0, at
    is_there = at + _INT16.size <= len(head)
    return 1 + int(_INT16.unpack_from(head, at)[0]) if is_there else 0, _after_string(head, at)


def _end_of_acks(head: Head, api_version: int) -> int:
    return transactional_id(head, _after_string(head, FIXED_HEAD), api_version)[1] + _INT16.size


def _end_of_replica_id(head: Head, row: FetchVersion) -> int:
    at = _after_string(head, FIXED_HEAD)
    if row.is_flexible:
        at = after_tags(head, at)
    return at + SIZE.size


def _after_string(head: Head, at: int) -> int:
    behind_length = at + _INT16.size
    if behind_length > len(head):
        return behind_length
    (length,) = _INT16.unpack_from(head, at)
    return behind_length + max(0, int(length))  # -1 is a null string
