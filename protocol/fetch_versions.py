# SPDX-License-Identifier: Apache-2.0
"""The wire layout of each version of Fetch: Kafka's FetchRequest.json and FetchResponse.json as a table.

Each row of FETCH_VERSIONS is the row before it with that version's changes. From v12 on the encoding is flexible:
strings and arrays are compact, and a tag buffer follows the header, every partition, every topic, and the last field.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from weir.protocol.errors import UnsupportedVersion
from weir.protocol.header import FETCH, SIZE

MAX_INT32: Final = 2**31 - 1

DECODED_VERSIONS: Final = range(0, 19)
"""The versions that weir decodes."""

TOPIC_ID_SIZE: Final = 16

ABORTED_TRANSACTION_SIZE: Final = 16
"""Bytes of an aborted transaction in a response without its tag buffer: producer_id and first_offset."""


class Fields(NamedTuple):
    """Fixed fields, one after the other. `codes` are codes of `struct`, one for each of `names`."""

    names: tuple[str, ...]
    codes: tuple[str, ...]
    layout: struct.Struct


def _fields(*fields: tuple[str, str]) -> Fields:
    codes = tuple(code for _, code in fields)
    return Fields(tuple(name for name, _ in fields), codes, struct.Struct(">" + "".join(codes)))


_REPLICA_ID: Final = ("replica_id", "i")
_WAIT: Final = (("max_wait_ms", "i"), ("min_bytes", "i"))
_LIMITED: Final = (*_WAIT, ("max_bytes", "i"))
_ISOLATED: Final = (*_LIMITED, ("isolation_level", "b"))
_SESSION: Final = (*_ISOLATED, ("session_id", "i"), ("session_epoch", "i"))

_PARTITION: Final = ("partition", "i")
_LEADER_EPOCH: Final = ("current_leader_epoch", "i")
_FETCH_OFFSET: Final = ("fetch_offset", "q")
_FETCHED_EPOCH: Final = ("last_fetched_epoch", "i")
_LOG_START_OFFSET: Final = ("log_start_offset", "q")
_MAX_BYTES: Final = ("partition_max_bytes", "i")

_ERROR_CODE: Final = ("error_code", "h")
_FETCHED: Final = (_PARTITION, _ERROR_CODE, ("high_watermark", "q"))
_STABLE: Final = (*_FETCHED, ("last_stable_offset", "q"))

_THROTTLED: Final = ("throttle_time_ms", "i")


_NO_BYTES: Final = SIZE.pack(0)


@dataclass(frozen=True, slots=True)
class FetchVersion:
    """One version of Fetch.

    - `request_head` and `response_head` are the fixed fields between the header and the topics array.
    - A partition of a request is `request_partition` (and a tag buffer).
    - A partition of a response is `response_partition`; where the version has them, the array of aborted transactions
      and preferred_read_replica; then the records after their size (and a tag buffer).
    """

    api_version: int
    request_head: Fields
    request_partition: Fields
    response_head: Fields
    response_partition: Fields
    takes_whole: bool = False
    """A partition returns at most `partition_max_bytes`, however large its batches are (below KIP-74)."""
    truncates: bool = False
    """Followers with it truncate to their own high watermark (below level 0.11, KIP-101)."""
    clients_wait: bool = False
    """Clients wait for `throttle_time_ms` themselves, and brokers mute them meanwhile (KIP-219)."""
    is_flexible: bool = False
    has_aborted_transactions: bool = False
    has_forgotten_topics: bool = False
    has_rack_id: bool = False
    has_preferred_read_replica: bool = False
    names_topics_by_id: bool = False
    """Topics go by id: 16 bytes in place of the name."""
    has_replica_state: bool = False
    """The replica id is not a field of the head, but a tag after the last field."""
    leader_epoch_size: int = 0
    """Bytes of current_leader_epoch behind the id of a requested partition; 0 in versions without it."""
    _requested: dict[int, struct.Struct] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def partition_size(self) -> int:
        """Bytes of a requested partition without its tag buffer."""
        return self.request_partition.layout.size

    def requested(self, stride: int) -> struct.Struct:
        """Return a struct that reads (partition, fetch_offset, partition_max_bytes) from entries of `stride` bytes."""
        layout = self._requested.get(stride)
        if layout is None:
            names = ("partition", "fetch_offset", "partition_max_bytes")
            layout = self._requested[stride] = _picked(self.request_partition, names, stride)
        return layout

    def leader_epoch(self, entry: bytes) -> bytes:
        """Return the current_leader_epoch of one requested partition as on the wire, if it has one."""
        return entry[SIZE.size : SIZE.size + self.leader_epoch_size]

    def with_max_bytes(self, entry: bytes, max_bytes: int) -> bytes:
        """Return one requested partition with another partition_max_bytes, the last fixed field in every version."""
        end = self.partition_size
        return entry[: end - SIZE.size] + SIZE.pack(max_bytes) + entry[end:]

    def with_no_bytes(self, entries: bytes, stride: int) -> bytes:
        """Return the same partitions with partition_max_bytes 0, without a loop over them."""
        end = self.request_partition.layout.size
        if len(entries) == stride:
            kept = entries[: end - SIZE.size] + _NO_BYTES
            return kept if end == stride else kept + entries[end:]
        zeroed = bytearray(entries)
        zeros = bytes(len(entries) // stride)
        for byte in range(end - SIZE.size, end):
            zeroed[byte::stride] = zeros
        return bytes(zeroed)


def _picked(fields: Fields, names: tuple[str, ...], stride: int) -> struct.Struct:
    codes = [
        code if name in names else f"{struct.calcsize(code)}x"
        for name, code in zip(fields.names, fields.codes, strict=True)
    ]
    return struct.Struct(">" + "".join(codes) + f"{stride - fields.layout.size}x")


_V0: Final = FetchVersion(
    api_version=0,
    request_head=_fields(_REPLICA_ID, *_WAIT),
    request_partition=_fields(_PARTITION, _FETCH_OFFSET, _MAX_BYTES),
    response_head=_fields(),
    response_partition=_fields(*_FETCHED),
    takes_whole=True,
    truncates=True,
)
_V1: Final = replace(_V0, api_version=1, response_head=_fields(_THROTTLED))  # KIP-13
_V2: Final = replace(_V1, api_version=2)  # KIP-32: changed only what is inside the records
# KIP-74: the order of partitions counts
_V3: Final = replace(_V2, api_version=3, request_head=_fields(_REPLICA_ID, *_LIMITED), takes_whole=False)
_V4: Final = replace(  # KIP-98
    _V3,
    api_version=4,
    request_head=_fields(_REPLICA_ID, *_ISOLATED),
    response_partition=_fields(*_STABLE),
    has_aborted_transactions=True,
)
_V5: Final = replace(  # KIP-107
    _V4,
    api_version=5,
    truncates=False,
    request_partition=_fields(_PARTITION, _FETCH_OFFSET, _LOG_START_OFFSET, _MAX_BYTES),
    response_partition=_fields(*_STABLE, _LOG_START_OFFSET),
)
_V6: Final = replace(_V5, api_version=6)  # KIP-112: one more error
_V7: Final = replace(  # KIP-227: sessions
    _V6,
    api_version=7,
    request_head=_fields(_REPLICA_ID, *_SESSION),
    response_head=_fields(_THROTTLED, _ERROR_CODE, ("session_id", "i")),
    has_forgotten_topics=True,
)
_V8: Final = replace(_V7, api_version=8, clients_wait=True)  # KIP-219
_V9: Final = replace(  # KIP-320
    _V8,
    api_version=9,
    request_partition=_fields(_PARTITION, _LEADER_EPOCH, _FETCH_OFFSET, _LOG_START_OFFSET, _MAX_BYTES),
    leader_epoch_size=4,
)
_V10: Final = replace(_V9, api_version=10)  # KIP-110: one more codec
_V11: Final = replace(_V10, api_version=11, has_rack_id=True, has_preferred_read_replica=True)  # KIP-392
_V12: Final = replace(  # KIP-482, KIP-595
    _V11,
    api_version=12,
    request_partition=_fields(_PARTITION, _LEADER_EPOCH, _FETCH_OFFSET, _FETCHED_EPOCH, _LOG_START_OFFSET, _MAX_BYTES),
    is_flexible=True,
)
_V13: Final = replace(_V12, api_version=13, names_topics_by_id=True)  # KIP-516
_V14: Final = replace(_V13, api_version=14)  # KIP-405: one more error
_V15: Final = replace(_V14, api_version=15, request_head=_fields(*_SESSION), has_replica_state=True)  # KIP-903
_V16: Final = replace(_V15, api_version=16)  # KIP-951: node endpoints in the response's tags
_V17: Final = replace(_V16, api_version=17)  # KIP-853: replica_directory_id in a requested partition's tags
_V18: Final = replace(_V17, api_version=18)  # KIP-1166: high_watermark in a requested partition's tags

FETCH_VERSIONS: Final[Mapping[int, FetchVersion]] = {
    row.api_version: row
    for row in (
        *(_V0, _V1, _V2, _V3, _V4, _V5, _V6, _V7, _V8, _V9),
        *(_V10, _V11, _V12, _V13, _V14, _V15, _V16, _V17, _V18),
    )
}
"""Every version of Fetch with a known layout, by number."""


def fetch_version(api_version: int) -> FetchVersion:
    """Return the row of FETCH_VERSIONS; UnsupportedVersion where there is none."""
    row = FETCH_VERSIONS.get(api_version)
    if row is None:
        raise UnsupportedVersion(FETCH, api_version)
    return row
