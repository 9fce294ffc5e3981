# SPDX-License-Identifier: Apache-2.0
"""Who sent a Fetch or Produce request, and what an answer of weir's own to it has to fit: read from its first bytes."""

import struct
from typing import Final, NamedTuple

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, FIXED_HEADER, PRODUCE, SHARE_FETCH, SIZE
from weir.protocol.request_head import transactional_id
from weir.protocol.varint import after_tags, read_unsigned_varint

_INT16: Final = struct.Struct(">h")
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
CLIENT_ID_AT: Final = SIZE.size + FIXED_HEADER.size
"""Where a request has the length of the client id, and then the id."""


MOST_START: Final = 1024
"""Bytes of a request that are looked at: what comes later is not known, and a longer client id is cut off."""

MOST_FETCH_START: Final = 16 * 1024
"""Bytes of a Fetch or ShareFetch that are looked at; up to this size it is known whole."""

_SHARE_FETCH_HEAD: Final = struct.Struct(">iiiiiib?")
"""From the epoch on: share_session_epoch, max_wait_ms, min_bytes, max_bytes, max_records, batch_size,
share_acquire_mode, is_renew_ack (ShareFetchRequest.json, v2)."""

_RENEWING_VERSION: Final = 2  # of ShareFetch: KIP-1222
_LAST_EPOCH: Final = -1


class RequestSender(NamedTuple):
    """What `start`, the first bytes of a request with its size, tells of its sender. Reading it never raises."""

    api_key: int = -1
    api_version: int = 0
    start: bytes = b""

    @property
    def client_id(self) -> bytes | None:
        """The id as on the wire; None where there is none."""
        start, at = self.start, CLIENT_ID_AT + _INT16.size
        if len(start) < at:
            return None
        (length,) = _INT16.unpack_from(start, CLIENT_ID_AT)
        return None if length < 0 else start[at : at + length]

    @property
    def client_id_field(self) -> bytes:
        """The id with its length, or as much of it as is there."""
        return self.start[CLIENT_ID_AT : CLIENT_ID_AT + _INT16.size + len(self.client_id or b"")]

    @property
    def session(self) -> tuple[int, int] | None:
        """The id and the epoch of a Fetch's session (v7+); (0, -1), which is none, in earlier versions.

        None where it is not known.
        """
        row, fields = FETCH_VERSIONS.get(self.api_version), self._fetch_fields
        if row is None or fields is None:
            return None
        return (fields["session_id"], fields["session_epoch"]) if "session_id" in row.request_head.names else (0, -1)

    @property
    def wait_seconds(self) -> float | None:
        """How long its client lets the broker wait: a Fetch's max_wait_ms, a Produce's timeout_ms (seconds).

        None where it is not known.
        """
        if self.api_key == PRODUCE:
            at = self._transactional_id[1]
            if at + _ACKS_AND_TIMEOUT.size > len(self.start):
                return None
            _, milliseconds = _ACKS_AND_TIMEOUT.unpack_from(self.start, at)
            return max(0, int(milliseconds)) / 1000
        fields = self._fetch_fields
        return None if fields is None else max(0, fields["max_wait_ms"]) / 1000

    @property
    def is_whole(self) -> bool:
        """Whether all of the request is here."""
        return len(self.start) >= SIZE.size and len(self.start) == SIZE.size + SIZE.unpack_from(self.start)[0]

    def with_wait(self, milliseconds: int) -> bytes:
        """Return a whole Fetch of a known version with another `max_wait_ms`."""
        row, at = FETCH_VERSIONS[self.api_version], self._body_at
        if row.is_flexible:
            at = after_tags(self.start, at)
        at += SIZE.size * row.request_head.names.index("max_wait_ms")  # only the replica id, as long, is before it
        return self.start[:at] + SIZE.pack(milliseconds) + self.start[at + SIZE.size :]

    def asking_for_no_records(self) -> bytes | None:
        """Return a ShareFetch that acknowledges what this one does, and asks for no records; None where none can.

        One with `is_renew_ack` (v2, KIP-1222) has to ask for none. The one that ends a session asks for none anyway.
        """
        start = self.start
        if self.api_key != SHARE_FETCH or self.api_version != _RENEWING_VERSION or not self.is_whole:
            return None
        try:
            at = after_tags(start, self._body_at)
            for _ in ("group_id", "member_id"):
                length_and_one, at = read_unsigned_varint(start, at)
                at += max(0, length_and_one - 1)
        except MalformedFrame:
            return None
        if at + _SHARE_FETCH_HEAD.size > len(start):
            return None
        epoch, *_, batch_size, acquire_mode, _ = _SHARE_FETCH_HEAD.unpack_from(start, at)
        if epoch == _LAST_EPOCH:
            return None
        head = _SHARE_FETCH_HEAD.pack(epoch, 0, 0, 0, 0, batch_size, acquire_mode, True)
        return start[:at] + head + start[at + len(head) :]

    @property
    def is_transactional(self) -> bool:
        """Whether it is a Produce request with a transactional id."""
        return self.api_key == PRODUCE and self._transactional_id[0] > 0

    @property
    def _transactional_id(self) -> tuple[int, int]:
        """1 + the length of a Produce's transactional id, and where it ends: as far as the start goes, if not known."""
        try:
            return transactional_id(self.start, self._body_at, self.api_version)
        except MalformedFrame:  # the broker judges it
            return 0, len(self.start)

    @property
    def _fetch_fields(self) -> dict[str, int] | None:
        """The fixed fields of a Fetch; None where they are not known."""
        row, at = FETCH_VERSIONS.get(self.api_version), self._body_at
        if self.api_key != FETCH or row is None:
            return None
        try:
            at = after_tags(self.start, at) if row.is_flexible else at
        except MalformedFrame:
            return None
        head = row.request_head
        if at + head.layout.size > len(self.start):
            return None
        return dict(zip(head.names, head.layout.unpack_from(self.start, at), strict=True))

    @property
    def _body_at(self) -> int:
        return CLIENT_ID_AT + _INT16.size + len(self.client_id or b"")
