# SPDX-License-Identifier: Apache-2.0
"""The last ten minutes of each side and of clients' limits, a sample a second, for the page and the status.

A sample reads a few totals that are counted anyway, in some ten microseconds. So samples are taken whether or not
somebody looks, and whoever opens the page in the middle of a move sees how it went so far.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from weir.limits.clients import Clients
from weir.proxy.admin.limited import LimitHistory
from weir.proxy.relay.side import Side

SAMPLE_SECONDS: Final = 1.0
KEPT_SAMPLES: Final = 601
"""One more than ten minutes have, as a rate needs two."""

TREND_SECONDS: Final = 60.0
"""How far the lag is looked back at to tell how fast it falls."""

_SHORTEST_TREND_SECONDS: Final = 10.0

_NO_QUOTA: Final = (0, None)


class Totals(NamedTuple):
    """One side's totals at a moment (clock seconds); bytes since the start.

    `found_messages` of the lag came with partitions that were seen for the first time.
    `quotas`: for each by its name what has passed of it, and what it allows (bytes/s; None: it limits nothing).
    `catch_up_bytes`: of replicas behind that no quota covers, beside a throttle.
    """

    at: float
    throttled_bytes: int
    other_bytes: int
    lag_messages: int
    found_messages: int
    quotas: dict[str, tuple[int, int | None]]
    catch_up_bytes: int


class Trend(NamedTuple):
    """How a side's lag went in the last minute, or since the start where that is less.

    - `falls_per_second`: messages per second; negative where the lag grows, None while too little is known.
    - `stands_still`: it was behind for the whole minute, and is not less behind now.
    - `none_for_seconds`: for how long nothing has been behind, from the start of the sidecar on.
    - `catch_up_bytes`: what passed in the last ten minutes of replicas behind that no quota covers, beside a throttle.
    """

    falls_per_second: float | None
    stands_still: bool
    none_for_seconds: float
    catch_up_bytes: int = 0


class SideHistory:
    """One side's samples, the oldest first."""

    def __init__(self, source: Side, start: float) -> None:
        self._source = source
        self.samples: deque[Totals] = deque(maxlen=KEPT_SAMPLES)
        self._behind_at = start  # when something was last seen behind

    def take(self, now: float) -> None:
        """Add a sample of the side's totals at `now` (clock seconds)."""
        throttled = other = 0
        for (_, is_throttled), size in self._source.throttle.stats.replication_bytes.items():
            if is_throttled:
                throttled += size
            else:
                other += size
        tracker = self._source.throttle.lag
        lag = tracker.sum_messages()
        if lag:
            self._behind_at = now
        quotas = {quota.name: (quota.passed_bytes, quota.rate) for quota in self._source.throttle.quotas}
        catch_up = self._source.throttle.stats.catch_up_beside_throttle
        self.samples.append(Totals(now, throttled, other, lag, tracker.found_messages, quotas, catch_up))

    def trend(self, now: float) -> Trend:
        """Return how the lag went until `now`."""
        tracker = self._source.throttle.lag
        lag = tracker.sum_messages()
        none_for = 0.0 if lag else now - self._behind_at
        catch_up = self.samples[-1].catch_up_bytes - self.samples[0].catch_up_bytes if self.samples else 0
        recent = [sample for sample in self.samples if sample.at >= now - TREND_SECONDS]
        begins = [number for number, sample in enumerate(recent, start=1) if not sample.lag_messages]
        behind = recent[begins[-1] :] if begins else recent  # since it was last caught up
        seconds = now - behind[0].at if behind else 0.0
        if seconds < _SHORTEST_TREND_SECONDS:
            return Trend(None, False, none_for, catch_up)
        # Below Fetch v7 a throttled partition's lag is known from its first grant on only: to know it is no growth.
        found = tracker.found_messages - behind[0].found_messages
        fell = behind[0].lag_messages + found - lag
        is_whole = not begins and seconds > TREND_SECONDS - 2 * SAMPLE_SECONDS
        return Trend(fell / seconds, bool(lag) and is_whole and fell <= 0, none_for, catch_up)

    def as_plain(self, after: float) -> dict[str, Any]:
        """Return the samples taken later than `after`, column by column; rates are since the sample before."""
        rows = [(old, new) for old, new in pairwise(self.samples) if new.at > after]
        names = dict.fromkeys(name for _, new in rows for name, (_, limit) in new.quotas.items() if limit is not None)
        return {
            "at": [round(new.at, 3) for _, new in rows],
            "throttled": [_rate(old.throttled_bytes, new.throttled_bytes, old, new) for old, new in rows],
            "other": [_rate(old.other_bytes, new.other_bytes, old, new) for old, new in rows],
            "lag_messages": [new.lag_messages for _, new in rows],
            "quotas": {
                name: {
                    "limit": [new.quotas.get(name, _NO_QUOTA)[1] for _, new in rows],
                    "rate": [
                        _rate(old.quotas.get(name, _NO_QUOTA)[0], new.quotas.get(name, _NO_QUOTA)[0], old, new)
                        for old, new in rows
                    ],
                }
                for name in names
            },
        }


class History:
    """The samples of all sides and limited clients, taken from `start` to `close`. `clock` gives monotonic seconds."""

    def __init__(self, sides: Sequence[Side], clients: Clients, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._limits = LimitHistory(clients, KEPT_SAMPLES)
        self.sides = [SideHistory(side, clock()) for side in sides]
        self._names = [side.throttle.side for side in sides]
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take a sample now, and then one each second."""
        self.take()
        self._next = asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self.start)

    def close(self) -> None:
        """Take no more samples."""
        if self._next is not None:
            self._next.cancel()

    def take(self) -> None:
        """Take one sample of each side, and one of the limits."""
        now = self._clock()
        self._limits.take(now)
        for side in self.sides:
            side.take(now)

    def as_plain(self, after: float) -> dict[str, Any]:
        """Return what `GET /v1/history` shows: samples later than `after`, in seconds of the sidecar's clock."""
        now = self._clock()
        sides = zip(self._names, self.sides, strict=True)
        limits = self._limits.as_plain(after)
        shown = {"now": round(now, 3), "sides": {name: side.as_plain(after) for name, side in sides}}
        return shown | ({"limits": limits} if limits else {})


def _rate(before: int, after: int, old: Totals, new: Totals) -> float:
    return round(max(0, after - before) / (new.at - old.at), 1)
