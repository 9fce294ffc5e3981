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


class ReportMessage(msgspec.Struct, frozen=True, kw_only=True):
    """See `weir.quota.shares.share.Report`."""

    rate: _Number
    members: _Count
    demand: _Number
    taken: _Count = 0
    borrowed: dict[int, _Number] = {}


class ShareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sidecar asks another for loans, of each of `rates`. `misses` are the brokers whose sidecars it misses."""

    broker_id: _Count
    number: _Count
    misses: list[_Count] = []
    rates: dict[_Name, ReportMessage]


class ShareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: `loans` by rate (bytes/s), for `seconds`; what is not lent and why."""

    broker_id: _Count
    seconds: _Number
    misses: list[_Count] = []
    loans: dict[_Name, _Number] = {}
    refused: dict[_Name, str] = {}
