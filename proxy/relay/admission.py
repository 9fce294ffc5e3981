"""How many connections a sidecar lets in: all together, and from one address."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

Refusal = Literal["too_many", "too_many_from_address"]

KNOWN_REFUSALS: Final[tuple[Refusal, ...]] = ("too_many", "too_many_from_address")

MOST_CONNECTIONS: Final = 8_000
MOST_FROM_ADDRESS: Final = 4_000
"""Half of all: whatever one address does leaves room for the others. A broker has a few hundred at most."""

DESCRIPTORS_EACH: Final = 2
"""The client's connection, and the one to its upstream."""

_OTHER_DESCRIPTORS: Final = 256
"""What the process has open beside them: listeners, admin HTTP, the cluster's connections, files."""


def descriptors_for(connections: int) -> int:
    """Return how many open files a process needs for so many connections."""
    return connections * DESCRIPTORS_EACH + _OTHER_DESCRIPTORS


def connections_with(descriptors: int) -> int:
    """Return how many connections a process with so many open files can have."""
    return max(1, (descriptors - _OTHER_DESCRIPTORS) // DESCRIPTORS_EACH)


class Admission:
    """Counts the connections of both sides. `most` and `most_from_address` may be changed at any time.

    A connection that is in stays in when they shrink.
    """

    def __init__(self, most: int = MOST_CONNECTIONS, most_from_address: int = MOST_FROM_ADDRESS) -> None:
        self.most = most
        self.most_from_address = most_from_address
        self.total = 0
        self._from: Counter[str] = Counter()

    def refusal(self, host: str) -> Refusal | None:
        """Return why one more connection from `host` is refused; None where it may come in."""
        if self.total >= self.most:
            return "too_many"
        return "too_many_from_address" if self._from[host] >= self.most_from_address else None

    def enter(self, host: str) -> None:
        """Count one more."""
        self.total += 1
        self._from[host] += 1

    def leave(self, host: str) -> None:
        """Count one less."""
        self.total -= 1
        self._from[host] -= 1
        if not self._from[host]:
            del self._from[host]
