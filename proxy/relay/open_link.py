# SPDX-License-Identifier: Apache-2.0
"""A link, as all those know it that have to do with one: its directions, and what a side has for all of its links."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from weir.protocol.request_events import OpaqueReason
from weir.proxy.relay.outcomes import GateState

Sender = Literal["client", "upstream"]
"""The peers of a link, by whose bytes they are."""

Why = Literal["fetch_memory", "fetch_stalled", "no_request_came"]
"""Why a link has to go: too little memory, a fetch whose rest does not come, or no first request."""


class Relayed(NamedTuple):
    """Bytes that were relayed, replication and all else: requests to the upstream, and answers to the clients."""

    requests: int = 0
    answers: int = 0


class HandedOver(Struct, frozen=True):
    """What a link's next owner has to know, between two requests.

    `unread` are bytes of the client that nobody has taken. `session_end` is that of OpenLink. `opaque_reason` says why
    its bytes are not understood; None where they are. `standing` is that of its gate.
    """

    unread: bytes = b""
    session_end: float = math.inf
    opaque_reason: OpaqueReason | None = None
    standing: GateState = GateState()


class OpenLink(Protocol):
    """A link, from the moment that both of its connections exist. `client_host` is its client's address."""

    client_host: str

    @property
    def relayed(self) -> Relayed:
        """What it has relayed so far."""

    @property
    def is_reading(self) -> bool:
        """Whether it takes what its client sends. While it does not, the client is not to blame for missing bytes."""

    @property
    def session_end(self) -> float:
        """Until when a request may be held (clock seconds), for the client's SASL session ends soon after."""

    def behind(self, most: int) -> bytes:
        """Return what its client has sent behind the request that is held: up to `most` bytes with the rest of that."""

    def carry_out(self) -> None:
        """Do what its core asks for since it has taken bytes."""

    def failed(self, error: Exception, sender: Sender) -> None:
        """Close, as the bytes of `sender` cannot be moved or taken. Log the reason unless a peer simply went away."""

    def replan(self) -> None:
        """Decide about the held request again."""

    def look_at_client(self) -> None:
        """See whether the client is gone, if what it sent is left unread."""

    def evict(self, why: Why, kept_bytes: int = 0) -> None:
        """Report why the link has to go, which keeps so much of requests, and close it."""
