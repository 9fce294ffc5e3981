# SPDX-License-Identifier: Apache-2.0
"""The lifetime of a SASL session, in answers to SaslAuthenticate of every version."""

from __future__ import annotations

import struct

import pytest

from tests.protocol.wire import compact_string, frame, string, tag_buffer
from weir.protocol.sasl_answer import SaslAnswer


def answer(version: int, lifetime_ms: int, *, token: bytes = b"v=proof", message: bytes | None = None) -> bytes:
    """An answer, as SaslAuthenticateResponse.json has it."""
    head = struct.pack(">i", 9)
    if version >= 2:
        body = b"\x00\x00" + compact_string(message) + compact_string(token) + struct.pack(">q", lifetime_ms)
        return frame(head + tag_buffer((7, b"xy")) + body + b"\x00")
    body = b"\x00\x00" + string(message) + struct.pack(">i", len(token)) + token
    return frame(head + body + (struct.pack(">q", lifetime_ms) if version else b""))


def lifetime(data: bytes, version: int, sizes: tuple[int, ...] = ()) -> float | None:
    """What a SaslAnswer tells of `data` in pieces; no byte beyond the frame may be taken."""
    told: list[float | None] = []
    watcher, at = SaslAnswer(version, told.append), 0
    watcher.left = len(data)
    for size in (*sizes, len(data)):
        if watcher.left:
            at += watcher.see(memoryview(data + b"next")[at : at + size])
    assert (at, watcher.left, told) == (len(data), 0, [])
    watcher.passed()
    return told[0]


@pytest.mark.parametrize("message", [None, b"", b"well done"])
@pytest.mark.parametrize("token", [b"", b"t" * 20_000, bytes(1_000_000)])
@pytest.mark.parametrize("version", [1, 2])
def test_lifetime_is_read_however_the_answer_is_cut(version: int, token: bytes, message: bytes | None) -> None:
    data = answer(version, 10_000, token=token, message=message)
    for sizes in ((), (8, 1, 5000), (1,) * min(200, len(data))):
        assert lifetime(data, version, sizes) == 10.0


def test_answer_without_a_lifetime_has_none() -> None:
    for version, data in ((0, answer(0, 0)), (1, answer(1, 0)), (2, answer(2, 0)), (3, answer(2, 5000))):
        assert lifetime(data, version) is None


@pytest.mark.parametrize("version", [1, 2])
def test_answer_that_ends_too_early_has_none(version: int) -> None:
    for size in range(4, len(answer(version, 10_000)) - 4 - (version == 2)):
        assert lifetime(frame(answer(version, 10_000)[4 : 4 + size]), version) is None
