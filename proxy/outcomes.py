"""What becomes of a request that is not simply passed on: values, which the link carries out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from protocol.framing import Pending, ResponseObserver
from protocol.request_head import RequestHead
from protocol.steps import Steps


@dataclass(frozen=True, slots=True)
class Pass:
    """The request goes to the broker as it came; `observer`, if any, sees the response."""

    observer: ResponseObserver | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """`data` goes to the broker in place of the request, and `pending` waits for its response."""

    data: bytes
    pending: Pending


@dataclass(frozen=True, slots=True)
class Answer:
    """The broker does not see the request: the answer in `pending` goes to the client when its turn comes."""

    pending: Pending


@dataclass(frozen=True, slots=True)
class Hold:
    """The request waits, and with it all that follow on its connection.

    `again` is to be called at `until` (the relay's clock, in seconds), or earlier when things changed; it tells, in
    steps, what becomes of the request then. `waits_for_budget` is what the throttle calls this connection in its line,
    where it has a place there: such requests are planned again when budget flows back.
    """

    until: float
    again: Callable[[], Steps[Outcome]]
    waits_for_budget: object = None


Outcome = Pass | Forward | Answer | Hold


class RequestGate(Protocol):
    """Who may hold requests that are no replica's fetch: a limit for clients, say."""

    def may_hold(self, head: RequestHead) -> bool:
        """Whether to ask `arrived` about this request. The others cost no more than this call."""

    def arrived(self, head: RequestHead) -> Pass | Hold:
        """What becomes of a request of which nothing has passed yet; its size does not matter, for it is not kept."""
