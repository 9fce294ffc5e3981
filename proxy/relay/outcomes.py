# SPDX-License-Identifier: Apache-2.0
"""What becomes of a request: values, which the link carries out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias

from msgspec import Struct

from weir.protocol.request_events import RequestBegins
from weir.protocol.request_head import Head, RequestHead
from weir.protocol.response_stream import Pending, ResponseObserver
from weir.protocol.steps import T

RequestWatcher = Callable[[memoryview], bool]
"""Sees a request's bytes as they pass, from its size prefix on. Returns whether the last one has come. It must not
raise."""


class PassOn(Struct, frozen=True):
    """The request, of which nothing was collected, goes to the broker as it came.

    `pending`, if there is one, waits for the response, and `watcher` sees the request, where it is streamed.
    """

    pending: Pending | None = None
    watcher: RequestWatcher | None = None


class Send(Struct, frozen=True):
    """`data` goes to the broker instead of the request, and `pending` waits for the response.

    `is_granted`: on the leader's side, bytes of a quota may come with the response.
    """

    data: bytes
    pending: Pending
    is_granted: bool = False


class Reply(Struct, frozen=True):
    """The broker does not see the request. The answer in `pending` goes to the client when its turn comes."""

    pending: Pending


class Wait(Struct, frozen=True):
    """The request waits, and so do all that follow it on its connection.

    It is decided about again at `until` (clock seconds of the relay), or earlier when something changes.
    `waits_for_budget` is the name that the throttle has for this connection in its line, if it is in line: such
    requests are planned again when budget flows back.
    """

    until: float
    waits_for_budget: object = None


Outcome = PassOn | Send | Reply

Waiting: TypeAlias = Generator[Wait | None, None, T]
"""Decides about a request in steps, and yields a Wait each time that the request has to wait."""


class GateState(Struct, frozen=True):
    """What a gate leaves to the one of another process that takes over its link.

    `owed`: what has a limit (three names), and the seconds that it still has to wait. `answered`: when the answers to
    the latest Produce requests came (monotonic seconds); `since`: since when the request was held that comes next.
    """

    owed: tuple[tuple[str, str, str, float], ...] = ()
    answered: tuple[float, ...] = ()
    since: float | None = None


class RequestGate(Protocol):
    """One link's part of something that may hold requests other than replica fetches, such as a limit for clients.

    It never has to do with more than one request that waits, as all later ones wait behind it.
    """

    def may_hold(self, head: RequestHead, frame: Head, may_be_replicas: bool, /) -> ResponseObserver | bool:
        """Return whether to ask `arrived` about this request. All others cost no more than this call.

        They pass; what sees the answer to one may be returned instead. `frame` is what is there of it, from its size
        on. `may_be_replicas` is that of RequestBegins.
        """

    def arrived(self, request: RequestBegins) -> PassOn | Waiting[Outcome]:
        """Return what becomes of a request of which nothing has passed yet, or what decides about it.

        It is not kept, so its size does not matter.
        """

    def standing(self, *, sends: bool) -> GateState:
        """Return what the gate of another process has to know to go on from here. Nothing is held.

        `sends`: whether the client has sent something that nobody has taken.
        """

    def go_on_from(self, before: GateState) -> None:
        """Go on as the gate of another process did, before the first request."""

    def gone(self) -> None:
        """Note that the request which was held is dropped, or that the link is closed."""
