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


@pytest.mark.parametrize("message", [None, b"", b"well done"])
@pytest.mark.parametrize("token", [b"", b"t" * 20_000])
@pytest.mark.parametrize("version", [1, 2])
def test_lifetime_is_read_and_every_byte_passes(version: int, token: bytes, message: bytes | None) -> None:
    data = answer(version, 10_000, token=token, message=message)
    observer = SaslAnswer(version)
    passed, at = b"", 0
    for size in [8, 1, 5000, len(data)]:  # the first bytes always come with the size
        if observer.done:
            break
        buffers, taken = observer.receive(memoryview(data + b"next")[at : at + size])
        passed, at = passed + b"".join(buffers), at + taken
    assert (passed, observer.done, observer.lifetime_seconds) == (data, True, 10.0)


def test_answer_without_a_lifetime_has_none() -> None:
    for version, data in ((0, answer(0, 0)), (1, answer(1, 0)), (2, answer(2, 0)), (3, answer(2, 5000))):
        observer = SaslAnswer(version)
        observer.receive(memoryview(data))
        assert observer.done and observer.lifetime_seconds is None


@pytest.mark.parametrize("version", [1, 2])
def test_answer_that_ends_too_early_passes_and_has_none(version: int) -> None:
    for size in range(4, len(answer(version, 10_000)) - 4 - (version == 2)):
        data = frame(answer(version, 10_000)[4 : 4 + size])
        observer = SaslAnswer(version)
        assert observer.receive(memoryview(data)) == ([data], len(data))
        assert observer.lifetime_seconds is None


def test_answer_that_is_very_large_passes_and_is_not_kept() -> None:
    data = answer(1, 10_000, token=bytes(1_000_000))
    observer = SaslAnswer(1)
    assert observer.receive(memoryview(data)) == ([data], len(data))
    assert observer.lifetime_seconds is None
