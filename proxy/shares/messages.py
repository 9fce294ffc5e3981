"""What sidecars say to each other about shared rates: the bodies of `POST /v1/shares` and of its answers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weir.quota.shares.share import Allotment, Word

MOST_BYTES = 1 << 20
"""Of a request or an answer."""

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Name = Annotated[str, Meta(max_length=300)]


class ShareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sidecar tells another one its parts of rates, by their names. `life` is this one's, of this process."""

    broker_id: _Count
    life: _Count = 0
    parts: dict[_Name, Allotment] = {}


class ShareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: a word on each, or why what was said of it counts for nothing."""

    broker_id: _Count
    seconds: float = 0
    """Previews need it: so they hear that this one lives, and lends nothing."""
    words: dict[_Name, Word] = {}
    refused: dict[_Name, str] = {}
