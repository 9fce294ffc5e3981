# SPDX-License-Identifier: Apache-2.0
"""How many connections a sidecar lets in, all together and from one address, and which are closed as nothing comes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, Literal, get_args

from weir.proxy.config.address import IPAddress
from weir.proxy.relay.open_link import OpenLink

Refusal = Literal["too_many", "too_many_from_address"]

KNOWN_REFUSALS: Final[tuple[Refusal, ...]] = get_args(Refusal)

MOST_CONNECTIONS: Final = 8_000
MOST_FROM_ADDRESS: Final = 4_000
"""Half of all: whatever one address does leaves room for the others. A broker has a few hundred at most."""

BROKERS_PART: Final = 8
"""One of so many connections is kept free for the cluster's brokers, once their addresses are known."""

DESCRIPTORS_EACH: Final = 2
"""The client's connection, and the one to its upstream."""

DESCRIPTORS_EACH_WITH_WORKERS: Final = 4
"""Beside them the plaintext of both, whose TLS worker processes have."""

_OTHER_DESCRIPTORS: Final = 256
"""What the process has open beside them: listeners, admin HTTP, the cluster's connections, files."""


def descriptors_for(connections: int, each: int = DESCRIPTORS_EACH) -> int:
    """Return how many open files a process needs for so many connections."""
    return connections * each + _OTHER_DESCRIPTORS


def connections_with(descriptors: int, each: int = DESCRIPTORS_EACH) -> int:
    """Return how many connections a process with so many open files can have."""
    return max(1, (descriptors - _OTHER_DESCRIPTORS) // each)


@dataclass(eq=False, slots=True)
class Admission:
    """Counts the connections of both sides. `most` and `most_from_address` may be changed at any time.

    Both sides share one bound, so clients of many addresses together could keep a broker's own connections out. All who
    are no brokers together leave 1 / BROKERS_PART of it free. A connection that is in stays in when the bounds shrink.
    """

    most: int = MOST_CONNECTIONS
    most_from_address: int = MOST_FROM_ADDRESS
    total: int = 0
    _from: Counter[str] = field(default_factory=Counter)
    _brokers: frozenset[str] = frozenset()
    _others: int = 0  # the connections of those who are no brokers

    def learn(self, brokers: Iterable[IPAddress]) -> None:
        """Take the addresses of all of the cluster's brokers, this sidecar's too."""
        self._brokers = frozenset(map(str, brokers))
        self._others = sum(count for host, count in self._from.items() if not self._is_broker(host))

    def refusal(self, host: str) -> Refusal | None:
        """Return why one more connection from `host` is refused; None where it may come in."""
        if self.total >= self.most or (self._others >= self.most_of_others and not self._is_broker(host)):
            return "too_many"
        return "too_many_from_address" if self._from[host] >= self.most_from_address else None

    @property
    def most_of_others(self) -> int:
        """How many connections all who are no brokers may have together."""
        return self.most - self.most // BROKERS_PART if self._brokers else self.most

    def enter(self, host: str) -> None:
        """Count one connection from `host` more."""
        self.total += 1
        self._from[host] += 1
        self._others += not self._is_broker(host)

    def leave(self, host: str) -> None:
        """Count one connection from `host` less, as it has ended."""
        self.total -= 1
        self._from[host] -= 1
        self._others -= not self._is_broker(host)
        if not self._from[host]:
            del self._from[host]

    def _is_broker(self, host: str) -> bool:
        """Whether connections from an address may be a broker's: by loopback comes this sidecar's own."""
        return host in self._brokers or host.startswith("127.") or host == "::1"


FIRST_REQUEST_SECONDS: Final = 600.0
"""As Kafka's connections.max.idle.ms."""

_SMALLEST_REQUEST: Final = 12  # bytes: its size, kind, version and correlation id
_SWEEP_SECONDS: Final = 1.0


@dataclass(eq=False, slots=True)
class FirstRequests:
    """The links whose first request is due, the oldest first. `clock` gives monotonic seconds.

    Each has `seconds`. One timer serves all: with thousands of links one for each would cost more than the links.
    """

    clock: Callable[[], float]
    seconds: float = FIRST_REQUEST_SECONDS
    """How long a link may send nothing. It may be changed at any time, and counts for all links."""
    _since: dict[OpenLink, float] = field(default_factory=dict)
    _sweep: asyncio.TimerHandle | None = None

    def expect(self, link: OpenLink) -> None:
        """Await a link's first request from now on."""
        self._since[link] = self.clock()
        self._watch()

    def drop(self, link: OpenLink) -> None:
        """Forget a link, which is closed."""
        self._since.pop(link, None)

    def expire(self) -> None:
        """Close the links whose time is over."""
        before = self.clock() - self.seconds
        for link, _ in list(takewhile(lambda one: one[1] <= before, self._since.items())):
            del self._since[link]
            if link.relayed.requests < _SMALLEST_REQUEST:
                link.evict("no_request_came")

    def _watch(self) -> None:
        if self._sweep is None and self._since:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._expire_and_watch)

    def _expire_and_watch(self) -> None:
        self._sweep = None
        self.expire()
        self._watch()
