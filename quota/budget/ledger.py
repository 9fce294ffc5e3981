"""The `strict` policy's sliding ledger: reserve, settle, debt.

Promise: bytes sent in the last second + bytes reserved and not yet answered <= 1.04 x quota + one batch, at every
instant. What a batch takes beyond the budget is carried as debt, so the long-run mean keeps to the quota.

Each link reserves through an `Account` of its own: whatever happens to the link, closing its account gives back all
that it held.

Two bounds work together. The *window* remembers what was sent in the last second and gives the promise its
strictness: a token bucket would let its burst through on top of a second's worth of tokens. The *credit* accrues at
the quota's rate and is capped at a quarter second, which spreads the second's bytes evenly and remembers debt for as
long as it takes to pay it back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 1.0
WINDOW_SLACK = 0.04  # an answer takes a little of each second; without slack that time is lost to the mean
CREDIT_SECONDS = 0.25  # credit that may wait for a link that is a little late; more would come as a burst
_BUCKET_SECONDS = 0.001  # sends closer together than this share one entry: the window holds at most 1,000
_UNKNOWN_WAIT_SECONDS = 0.05  # when room depends on answers still to come; a settlement wakes waiters earlier
UNSTEADY = 0.02  # of the bytes that no quota could stop: room kept for the next second's, which may be that many more
_SMOOTH_SECONDS = 4.0  # over which their rate is measured
PROBE_DEBT_SECONDS = 10.0  # of quota: the most that answers to probes may leave to be paid
_EPSILON_BYTES = 0.5  # rates are integers; this only absorbs the rounding of credit kept as a float


class StrictLedger:
    """One side's budget under the `strict` policy. Rates in bytes/s; None is no quota, 0 lets nothing through."""

    def __init__(self, clock: Callable[[], float], rate: int | None = None) -> None:
        self._clock = clock
        self._rate = rate
        self._credit = 0.0  # starts empty: the first second must not show twice the quota
        self._credit_at = clock()
        self._sent: deque[list[float]] = deque()  # [time, bytes, those that no quota could stop], oldest first
        self._sent_bytes = 0
        self._exempt_bytes = 0
        self._exempt_rate = 0.0  # bytes/s, smoothed
        self._exempt_now = 0  # bytes of the second that began at `_second_at`, and of the one before it
        self._exempt_before = 0
        self._second_at = clock()
        self._reserved = 0
        self._wanted_at = -math.inf

    @property
    def rate(self) -> int | None:
        return self._rate

    @property
    def reserved(self) -> int:
        """Bytes reserved by requests that wait for their answers."""
        return self._reserved

    def set_rate(self, rate: int | None) -> None:
        """Put another quota in force at once.

        Credit saved under the old one is capped by the new one's, and so is debt: it is at most one window of it.
        """
        self._advance(self._clock())
        if self._rate is None:
            self._credit = 0.0
            self._exempt_rate = 0.0  # of bytes that nothing tried to stop it says little
        self._rate = rate
        if rate is not None:
            self._credit = max(min(self._credit, rate * CREDIT_SECONDS), -rate * WINDOW_SECONDS)
            if rate == 0:
                self._credit = 0.0  # nothing would ever pay a debt back

    @property
    def most_credit(self) -> float:
        """The most credit that can gather while nothing is sent, in bytes. Needs a rate."""
        return (self._rate or 0) * CREDIT_SECONDS

    def credit(self) -> float:
        """Bytes that the pace allows now; negative while a debt is paid back. Needs a rate."""
        self._advance(self._clock())
        return self._credit + _EPSILON_BYTES

    def room(self) -> float:
        """Bytes that the window has left now. Needs a rate."""
        self._advance(self._clock())
        return self._limit() - self._taken(self._sent_bytes, self._exempt_bytes) - self._reserved + _EPSILON_BYTES

    def credit_at(self, size: float) -> float:
        """The time at which `credit` reaches `size` if nothing else is granted; inf at rate 0."""
        self._advance(self._clock())
        if not self._rate:
            return float("inf")
        return self._credit_at + max(0.0, size - self._credit - _EPSILON_BYTES) / self._rate

    def room_at(self, size: float) -> float:
        """The time at which `room` reaches `size` if nothing else is sent; inf at rate 0.

        A size larger than the window has room when nothing is left in it.
        """
        now = self._clock()
        missing = min(size, self._limit()) - self.room() - _EPSILON_BYTES
        if not self._rate:
            return float("inf")
        if missing <= 0:
            return now
        sent_bytes, unstoppable_bytes = self._sent_bytes, self._exempt_bytes
        enough = self._taken(sent_bytes, unstoppable_bytes) - missing
        for time, sent, exempt in self._sent:
            sent_bytes -= int(sent)
            unstoppable_bytes -= int(exempt)
            if self._taken(sent_bytes, unstoppable_bytes) <= enough:
                return time + WINDOW_SECONDS
        return now + _UNKNOWN_WAIT_SECONDS

    def want(self, *, is_waited_for: bool = False) -> None:
        """Somebody wants budget. Where nobody did for a second and nothing was sent in it, begin without credit.

        What had gathered meanwhile would come on top of the first seconds' quota. What gathers while it is wanted
        stays: a link may have left the line since, as an earlier hop left out what it waits for.
        `is_waited_for` says whether links stand in line.
        """
        now = self._clock()
        self._advance(now)
        is_new = now - self._wanted_at >= WINDOW_SECONDS and not is_waited_for
        self._wanted_at = now
        if is_new and not self._sent and not self._reserved:
            self._credit = min(self._credit, 0.0)

    def reserve(self, size: int) -> None:
        """Set `size` bytes aside for a request that is about to be forwarded."""
        self._advance(self._clock())
        self._reserved += size
        self._credit -= size

    def settle(self, reserved: int, used: int) -> None:
        """The answer came: `used` bytes were sent against `reserved`. The rest flows back; an excess is debt."""
        self.hand_over(reserved, used)
        self.confirm(used)

    def hand_over(self, reserved: int, used: int) -> None:
        """As `settle`, but the bytes sent stay reserved until `confirm`: the follower has not taken them in yet."""
        self._advance(self._clock())
        self._reserved += used - reserved
        self._credit = min(self._credit + reserved - used, max(self._credit, self.most_credit))

    def confirm(self, used: int) -> None:
        """The follower has taken in bytes that were handed over: from now on they leave the window by time."""
        now = self._clock()
        self._advance(now)
        self._reserved -= used
        self._send(now, used)

    def charge(self, size: int) -> None:
        """Count bytes of in-sync replicas, which no quota could stop.

        Their debt is bounded by one quota window: otherwise an hour of inflow above the quota would starve a move
        for hours.
        """
        now = self._owe(size, WINDOW_SECONDS)
        self._exempt_rate += size / _SMOOTH_SECONDS
        self._exempt_now += size
        self._send(now, size, size)

    def charge_probe(self, size: int) -> None:
        """Count bytes that came with the answer to a probe."""
        self._send(self._owe(size, PROBE_DEBT_SECONDS), size)

    def recount(self, reserved: int) -> None:
        """Take what all open accounts hold together: an exception half way through a change may have lost count."""
        self._reserved = reserved

    def _owe(self, size: int, most_seconds: float) -> float:
        """Take `size` bytes of credit, down to a debt of `most_seconds` of quota; returns the time."""
        now = self._clock()
        self._advance(now)
        floor = -(self._rate or 0) * most_seconds
        self._credit = min(self._credit, max(floor, self._credit - size))
        return now

    def _taken(self, sent: int, exempt: int) -> float:
        """What a second's bytes take of the window, with room for what no quota can stop in the next second.

        That is expected to be what the last seconds had on average; but no more than came in the last one or two: a
        burst that is over is not expected again.
        """
        expected = min(self._exempt_rate * WINDOW_SECONDS, self._exempt_now + self._exempt_before)
        return sent - exempt + max(exempt, expected) * (1 + UNSTEADY)

    def _limit(self) -> float:
        return (self._rate or 0) * WINDOW_SECONDS * (1 + WINDOW_SLACK)

    def _send(self, now: float, size: int, exempt: int = 0) -> None:
        if size <= 0:
            return
        self._sent_bytes += size
        self._exempt_bytes += exempt
        if self._sent and now < self._sent[-1][0]:
            self._sent[-1][1] += size
            self._sent[-1][2] += exempt
        else:
            # Stamped with the end of its bucket: bytes may leave the window late, never early.
            self._sent.append([now + _BUCKET_SECONDS, size, exempt])

    def _advance(self, now: float) -> None:
        if self._rate is not None and self._credit < (cap := self._rate * CREDIT_SECONDS):
            self._credit = min(cap, self._credit + (now - self._credit_at) * self._rate)
        if self._exempt_rate:
            self._exempt_rate *= math.exp((self._credit_at - now) / _SMOOTH_SECONDS)
        self._credit_at = now
        if now - self._second_at >= WINDOW_SECONDS:
            is_next = now - self._second_at < 2 * WINDOW_SECONDS
            self._exempt_before = self._exempt_now if is_next else 0
            self._exempt_now = 0
            self._second_at = now
        sent = self._sent
        while sent and sent[0][0] + WINDOW_SECONDS <= now:
            _, size, exempt = sent.popleft()
            self._sent_bytes -= int(size)
            self._exempt_bytes -= int(exempt)


class Account:
    """What one link holds of a ledger: reserved for answers to come, and handed over but not confirmed."""

    __slots__ = ("_ledger", "held")

    def __init__(self, ledger: StrictLedger) -> None:
        self._ledger = ledger
        self.held = 0

    def reserve(self, size: int) -> None:
        """See StrictLedger.reserve."""
        self.held += size
        self._ledger.reserve(size)

    def settle(self, reserved: int, used: int) -> None:
        """See StrictLedger.settle."""
        self.held -= reserved
        self._ledger.settle(reserved, used)

    def hand_over(self, reserved: int, used: int) -> None:
        """See StrictLedger.hand_over."""
        self.held += used - reserved
        self._ledger.hand_over(reserved, used)

    def confirm(self, used: int) -> None:
        """See StrictLedger.confirm."""
        self.held -= used
        self._ledger.confirm(used)

    def close(self) -> None:
        """Hold nothing any more. What was held may have been sent in part: it counts as sent."""
        held, self.held = self.held, 0
        self._ledger.settle(held, held)
