"""The broker of the benches answers each kind of request with as much as it asks for, and no more."""

from __future__ import annotations

import struct

import pytest

from bench.peers import _responses, fetch_request, metadata_request
from weir.protocol.metadata import encode_api_versions_request


@pytest.mark.parametrize(
    ("request_", "size"),
    [
        (metadata_request(7, 64), 64),
        (fetch_request(7, 4096), 4096),
        # Of a sidecar that asks whether anybody is there: no size can be read from its client id.
        (encode_api_versions_request(7, b"weir"), 14),
    ],
)
def test_answer_has_the_size_that_was_asked_for(request_: bytes, size: int) -> None:
    answer, taken = _responses(memoryview(request_ + request_[:5]))
    assert (len(answer), taken) == (size, len(request_))
    assert struct.unpack_from(">ii", answer) == (size - 4, 7)
