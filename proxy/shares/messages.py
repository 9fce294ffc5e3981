"""What sidecars say to each other about shared rates: the bodies of `POST /v1/shares` and of its answers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MOST_BYTES = 1 << 20
"""Of a request or an answer."""

_Number = Annotated[float, Meta(ge=0, le=float(2**63))]
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Name = Annotated[str, Meta(max_length=300)]


class PartMessage(msgspec.Struct, frozen=True, kw_only=True):
    """See `weir.quota.shares.share.Part`."""

    rate: _Number
    members: _Count
    number: _Count
    size: _Number
    said_at: float
    is_divided: bool


class WordMessage(msgspec.Struct, frozen=True, kw_only=True):
    """See `weir.quota.shares.share.Word`."""

    demand: _Number
    said_at: float
    takes: bool
    divides: bool


class ShareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sidecar tells another one its parts of rates, by their names. `life` is this one's, of this process."""

    broker_id: _Count
    life: _Count = 0
    parts: dict[_Name, PartMessage] = {}


class ShareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: a word on each, or why what was said of it counts for nothing."""

    broker_id: _Count
    seconds: _Number = 0
    """Previews need it: so they hear that this one lives, and lends nothing."""
    words: dict[_Name, WordMessage] = {}
    refused: dict[_Name, str] = {}
