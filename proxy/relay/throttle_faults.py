"""How often the throttle has failed on whose connections."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

FAILURES: Final = 3
"""A connection is closed when the throttle fails on it, and its client comes back: after so many it gets the spare."""

SPARE_SECONDS: Final = 30.0
"""For how long the spare decides, before the throttle is tried again."""

_FORGOTTEN_SECONDS: Final = 600.0
_MOST_CLIENTS: Final = 1_000


@dataclass(slots=True)
class _Failures:
    last_at: float
    count: int = 1


class ThrottleFaults:
    """Those of one side, by client. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_client: OrderedDict[Hashable, _Failures] = OrderedDict()

    def failed(self, client: Hashable) -> None:
        """Note that the throttle failed on a client's connection."""
        now = self._clock()
        known = self._by_client.pop(client, None)
        if known is None or now - known.last_at > _FORGOTTEN_SECONDS:
            known = _Failures(now, 0)
        known.last_at, known.count = now, known.count + 1
        self._by_client[client] = known
        if len(self._by_client) > _MOST_CLIENTS:
            self._by_client.popitem(last=False)

    def spared_until(self, client: Hashable) -> float:
        """Return until when the spare is to decide about a client's fetches (clock seconds)."""
        known = self._by_client.get(client)
        return float("-inf") if known is None or known.count < FAILURES else known.last_at + SPARE_SECONDS
