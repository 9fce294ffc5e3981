"""The responses of one link: which pass as they are, and which the throttle has to know of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from weir.protocol.framing import ResponseStream
from weir.protocol.response_scanner import Buffer
from weir.protocol.steps import Steps
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.fetches import ReplicaFetches
from weir.proxy.relay.link_life import Event, LinkLife
from weir.proxy.relay.open_link import Sender


@dataclass(eq=False, slots=True)
class LinkResponses:
    """Turns what the broker sends into what goes to the client. It reads and sends nothing, like `LinkRequests`."""

    life: LinkLife
    fetches: ReplicaFetches
    stream: ResponseStream = field(default_factory=ResponseStream)
    out: list[Buffer] = field(default_factory=list)
    """What goes to the client, the oldest first. Whoever sends it takes it out."""

    sender: ClassVar[Sender] = "upstream"
    end: ClassVar[Event] = Event.UPSTREAM_ENDED

    @property
    def is_taken(self) -> bool:
        """Whether `take` may be called."""
        return self.life.takes_responses

    @property
    def is_read(self) -> bool:
        """Whether more is to be read from the broker."""
        return self.life.reads_responses

    def passes(self, view: memoryview) -> bool:
        """Return whether all of the next bytes go on as they came, in the middle of a response. If so, they are taken.

        Most bytes take this way.
        """
        stream = self.stream
        if stream.skip(len(view)) or stream.looks(view):
            self.out.append(view)
            return True
        return False

    def take(self, view: memoryview) -> tuple[int, Steps[None] | None]:
        """Take the next bytes. Returns how many were taken: all; and the settlement of the responses that are whole."""
        stream = self.stream
        stream.receive(view, self.out)
        if not stream.completed:
            return len(view), None
        completed, stream.completed = stream.completed, []
        return len(view), self.fetches.settle(completed)

    def next_is_large(self, is_bulk: bool) -> bool:
        """Return whether a large buffer is worth it for the next read. `is_bulk`: the last was full of large frames."""
        stream = self.stream
        if stream.observing:
            self.fetches.answer_begins()
            return not stream.is_dense
        return stream.opaque or stream.passing > SMALL_BUFFER_SIZE or is_bulk
