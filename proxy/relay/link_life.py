"""The life of a link: its states, and what each event changes.

A link's state is that of five small machines: Phase, Client, Upstream, Requests and Work. Every event goes to all of
them. Their states together say what may be read and taken. As in h11, all of it is in tables. An event that no table
has for the present state is a bug, and raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from typing import Final


class Event(Enum):
    """What can happen to a link."""

    STARTED = auto()
    """Bytes may move."""
    HELD = auto()
    """A request is held, and all later ones wait with it."""
    RELEASED = auto()
    """The held request goes on, or is given up."""
    CROWDED = auto()
    """The client has as much under way as it may."""
    EASED = auto()
    """There is room for more of the client's requests."""
    WORK_BEGAN = auto()
    """Work over several turns of the event loop began. What it looks at must not change meanwhile."""
    WORK_ENDED = auto()
    CLIENT_ENDED = auto()
    """The client sent its last byte."""
    UPSTREAM_ENDED = auto()
    """The broker sent its last byte."""
    DRAIN = auto()
    """No further request may be taken."""
    LAST_REQUEST_ENDED = auto()
    """While draining: the request under way came to its end."""
    DELIVERED = auto()
    """While draining: every pending response has passed."""
    CLOSE = auto()
    """Something broke, or the link has done all it had to."""


class Phase(Enum):
    """How far the link's life has come."""

    NEW = auto()
    OPEN = auto()
    DRAINING = auto()
    LINGERING = auto()
    """The broker's connection is closed; the client has a moment to close its own."""
    CLOSED = auto()


class Client(Enum):
    """What the client may still send."""

    SENDS = auto()
    FINISHES = auto()
    """Only the rest of one request."""
    IS_DONE = auto()
    """Nothing more is taken."""
    ENDED = auto()


class Upstream(Enum):
    """What the broker may still send."""

    SENDS = auto()
    ENDED = auto()


class Requests(Enum):
    """Whether the next request is taken."""

    FREE = auto()
    HELD = auto()
    CROWDED = auto()
    HELD_AND_CROWDED = auto()


class Work(Enum):
    """Whether work over several turns is under way."""

    NONE = auto()
    UNDER_WAY = auto()


_States = tuple["State", "State", "State", "State", "State"]
State = Phase | Client | Upstream | Requests | Work

TABLE: Final[Mapping[State, Mapping[Event, State]]] = {
    Phase.NEW: {Event.STARTED: Phase.OPEN, Event.CLOSE: Phase.CLOSED},
    Phase.OPEN: {
        Event.CLIENT_ENDED: Phase.OPEN,  # half-closed: the other direction goes on
        Event.UPSTREAM_ENDED: Phase.OPEN,
        Event.DRAIN: Phase.DRAINING,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.DRAINING: {
        Event.CLIENT_ENDED: Phase.CLOSED,
        Event.UPSTREAM_ENDED: Phase.CLOSED,
        Event.DELIVERED: Phase.LINGERING,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.LINGERING: {Event.CLIENT_ENDED: Phase.CLOSED, Event.CLOSE: Phase.CLOSED},
    Phase.CLOSED: {},
    Client.SENDS: {Event.DRAIN: Client.FINISHES, Event.CLIENT_ENDED: Client.ENDED},
    Client.FINISHES: {Event.LAST_REQUEST_ENDED: Client.IS_DONE, Event.CLIENT_ENDED: Client.ENDED},
    Client.IS_DONE: {Event.CLIENT_ENDED: Client.ENDED},
    Client.ENDED: {Event.DRAIN: Client.ENDED},
    Upstream.SENDS: {Event.UPSTREAM_ENDED: Upstream.ENDED},
    Upstream.ENDED: {},
    Requests.FREE: {
        Event.HELD: Requests.HELD,
        Event.CROWDED: Requests.CROWDED,
    },
    Requests.HELD: {
        Event.RELEASED: Requests.FREE,
        Event.CROWDED: Requests.HELD_AND_CROWDED,
    },
    Requests.CROWDED: {
        Event.HELD: Requests.HELD_AND_CROWDED,
        Event.EASED: Requests.FREE,
    },
    Requests.HELD_AND_CROWDED: {
        Event.RELEASED: Requests.CROWDED,
        Event.EASED: Requests.HELD,
    },
    Work.NONE: {Event.WORK_BEGAN: Work.UNDER_WAY},
    Work.UNDER_WAY: {Event.WORK_ENDED: Work.NONE},
}
"""The next state by state and event. An event that a machine has in none of its rows leaves that machine as it is."""

CLOSED_TOGETHER: Final[tuple[frozenset[State], ...]] = (
    frozenset((Client.ENDED, Upstream.ENDED)),  # nothing can follow
    frozenset((Client.ENDED, Requests.HELD)),  # nobody waits for the held request any more
    frozenset((Client.ENDED, Requests.HELD_AND_CROWDED)),
    frozenset((Upstream.ENDED, Requests.HELD)),  # nobody would answer the held request
    frozenset((Upstream.ENDED, Requests.HELD_AND_CROWDED)),
    frozenset((Phase.LINGERING, Client.ENDED)),
)
"""Pairs of states that close the link, whichever event led to them."""

_CARED_FOR: Final[Mapping[type[State], frozenset[Event]]] = {
    machine: frozenset(event for state, row in TABLE.items() if type(state) is machine for event in row)
    for machine in (Phase, Client, Upstream, Requests, Work)
}


class ImpossibleEvent(Exception):
    """An event that no table has for the link's state: a bug."""


class LinkLife:
    """The state of a link. `on` takes events; where it raises, nothing has changed. All else is only to be read."""

    __slots__ = (
        *("client", "phase", "requests", "states", "upstream", "work"),
        *("is_closed", "is_crowded", "is_draining"),
        *("reads_requests", "reads_responses", "takes_requests", "takes_responses"),
    )

    def __init__(self) -> None:
        self._enter((Phase.NEW, Client.SENDS, Upstream.SENDS, Requests.FREE, Work.NONE))

    def on(self, event: Event) -> None:
        """Take an event. Raises ImpossibleEvent where no table has it; after the end that is so for every event."""
        if self.is_closed:
            raise ImpossibleEvent(f"{event.name} after the link was closed")
        self._enter(_after(self.states, event))

    def _enter(self, states: _States) -> None:
        self.states = states
        """The states of all five machines. While nothing changes it is the same object."""
        self.phase, self.client, self.upstream, self.requests, self.work = states
        self.is_closed = self.phase is Phase.CLOSED
        self.is_draining = self.phase is Phase.DRAINING
        """Whether no further request is taken, while pending ones are still answered."""
        self.is_crowded = self.requests in (Requests.CROWDED, Requests.HELD_AND_CROWDED)
        self.takes_responses = self.phase in (Phase.OPEN, Phase.DRAINING) and self.work is Work.NONE
        """Whether responses that were read are passed on."""
        self.reads_responses = self.takes_responses and self.upstream is Upstream.SENDS
        """Whether more is read from the broker."""
        self.takes_requests = self.takes_responses and self.requests is Requests.FREE
        """Whether requests that were read are carried out."""
        self.reads_requests = self.takes_requests and self.client in (Client.SENDS, Client.FINISHES)
        """Whether more is read from the client."""


@cache
def _after(states: _States, event: Event) -> _States:
    """The states after an event. There are a few hundred at most, so all that were met are kept."""
    phase, *others = [_next(state, event) for state in states]
    together = frozenset((phase, *others))
    if any(pair <= together for pair in CLOSED_TOGETHER):
        phase = Phase.CLOSED
    client, upstream, requests, work = others
    return phase, client, upstream, requests, work


def _next(state: State, event: Event) -> State:
    after = TABLE[state].get(event)
    if after is not None:
        return after
    if event in _CARED_FOR[type(state)]:
        raise ImpossibleEvent(f"{event.name} in {type(state).__name__}.{state.name}")
    return state
