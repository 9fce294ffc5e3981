# SPDX-License-Identifier: Apache-2.0
import copy

import pytest

from weir.protocol.errors import (
    CorrelationMismatch,
    FrameTooLarge,
    InvalidFrameSize,
    MalformedFrame,
    ProtocolError,
    TooMany,
    UnexpectedResponse,
    UnsupportedVersion,
)

ERRORS = [
    (InvalidFrameSize(-7), "invalid_frame_size", {"size": -7}),
    (FrameTooLarge(11, 10), "frame_too_large", {"size": 11, "limit": 10}),
    (MalformedFrame("3 topics cannot stand in 5 bytes", 8), "malformed_frame", {"offset": 8}),
    (TooMany("topics", 12, 11), "too_many", {"what": "topics", "count": 12, "limit": 11}),
    (UnsupportedVersion(1, 99), "unsupported_version", {"api_key": 1, "api_version": 99}),
    (UnexpectedResponse(42), "unexpected_response", {"correlation_id": 42}),
    (CorrelationMismatch(1, 2), "correlation_mismatch", {"expected": 1, "received": 2}),
]


@pytest.mark.parametrize(("error", "kind", "fields"), ERRORS, ids=lambda value: getattr(value, "kind", ""))
def test_error_carries_its_facts_as_fields_and_one_sentence(
    error: ProtocolError, kind: str, fields: dict[str, int | str]
) -> None:
    assert error.kind == kind
    for name, value in fields.items():
        assert getattr(error, name) == value
        assert str(value) in str(error)
    assert str(error).endswith(".")
    assert str(error).count(".") == 1


@pytest.mark.parametrize("error", [error for error, _, _ in ERRORS], ids=lambda error: error.kind)
def test_error_survives_a_copy(error: ProtocolError) -> None:
    """Loggers and process pools copy exceptions, which calls the class with `args` again."""
    assert str(copy.copy(error)) == str(error)


def test_error_kinds_are_all_there_and_distinct() -> None:
    """Each is a label of a metric: a shared one would hide a fault behind another."""
    kinds = [error_type.kind for error_type in ProtocolError.__subclasses__()]
    assert sorted(kinds) == sorted({kind for _, kind, _ in ERRORS})
