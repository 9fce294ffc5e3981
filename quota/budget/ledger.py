# SPDX-License-Identifier: Apache-2.0
"""The `strict` policy's ledger: bytes are reserved before they go, settled afterwards, and an excess is debt.

It promises, at every instant: bytes sent in the last second + bytes reserved and not yet answered <= 1.04 x quota + one
batch. The *window* remembers what was sent in the last second; the promise rests on it. The *credit* grows at the
quota's rate up to a quarter of a second's worth: it spreads the bytes evenly, and holds debt until it is paid.

Bytes that are *held back* were granted, and cannot arrive yet: the relay keeps them for a slow follower, or the answer
waits at its leader. They take nothing of window and credit. *Exempt* bytes are those of in-sync replicas: no quota can
stop them, but they count. What they owe is kept apart, as it is a second of quota at most, and is paid last.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass

from msgspec import Struct

from weir.quota.figures import (
    CREDIT_SECONDS,
    EPSILON_BYTES,
    EXPECTED_SECONDS,
    LEAST_BYTES,
    LONGEST_WAIT_SECONDS,
    SHORTEST_WAIT_SECONDS,
    TICK_SECONDS,
    WINDOW_SECONDS,
    WINDOW_SLACK,
)


class LedgerState(Struct, frozen=True):
    """What a ledger hands over to that of another process, which reads the same clock.

    `credit` is negative while it owes. `sent` are the last second's [time, bytes, exempt ones of them].
    """

    credit: float = 0.0
    exempt_owed: float = 0.0
    sent: tuple[tuple[float, int, int], ...] = ()


class StrictLedger:
    """One side's budget under the `strict` policy. Rates are in bytes/s: None is no quota, 0 lets nothing through."""

    def __init__(self, clock: Callable[[], float], rate: int | None = None) -> None:
        self.clock = clock
        self.rate = rate
        self._credit = 0.0  # not full: the first second would show more than the quota
        self._credit_at = clock()
        self._exempt_owed = 0.0  # bytes, paid before the credit grows above 0
        self._sent: deque[list[float]] = deque()  # [time, bytes, exempt ones of them], oldest first
        self._sent_bytes = 0
        self.sent_exempt = 0  # bytes of them, in the last second
        self.reserved = 0  # bytes that were granted, may arrive at any time, and are not known to have arrived
        self.waiting_links = 0  # how many links have bytes that were granted and are held back
        self.due = 0  # how many bytes of them go as soon as there is room; up to half of the window is kept for them
        self.lent_until: dict[Hashable, float] = {}  # clock seconds; links of late answers, see `lend`
        self._wanted_until = -math.inf
        self._earns = True  # until another ledger does in its place

    def set_rate(self, rate: int | None) -> None:
        """Put another quota in force. No debt is forgiven; exempt bytes owe no more than a second of the new one."""
        self._advance(self.clock())
        if self.rate is None:
            self._credit = min(self._credit, 0.0)
        self.rate = rate
        if rate:  # at 0 nothing is earned, nor lost
            self._credit = min(self._credit, rate * CREDIT_SECONDS)
            self._exempt_owed = min(self._exempt_owed, rate * WINDOW_SECONDS)

    def _most_kept(self, now: float) -> float:
        """Return the most credit (bytes): more while links are lent some: late answers take theirs at once."""
        is_lent = self.lent_until and next(reversed(self.lent_until.values())) > now
        return (self.rate or 0) * (WINDOW_SECONDS if is_lent else CREDIT_SECONDS)

    def credit(self) -> float:
        """Return the bytes that the credit allows now; negative while a debt is paid. Needs a rate."""
        self._advance(self.clock())
        return self._credit - self._exempt_owed + EPSILON_BYTES

    def room(self) -> float:
        """Return the bytes that the window has room for now, beside what is due. Needs a rate."""
        return self.room_for_due() - min(self.due, self._limit() / 2)

    def room_for_due(self) -> float:
        """Return the bytes that the window has room for now. Needs a rate."""
        self._advance(self.clock())
        return self._limit() - self._sent_bytes - self.reserved + EPSILON_BYTES

    def credit_at(self, size: float) -> float:
        """Return the time at which `credit` reaches `size` if nothing else is granted; inf at rate 0."""
        missing = size - self.credit()
        return self._credit_at + max(0.0, missing) / self.rate if self.rate else math.inf

    def room_at(self, size: float) -> float:
        """Return when `room` reaches `size`, or the window is empty, if nothing else is sent; inf at rate 0."""
        now = self.clock()
        missing = min(size, self._limit()) - self.room() - EPSILON_BYTES
        if not self.rate:
            return float("inf")
        if missing <= 0:
            return now
        for time, sent, _ in self._sent:
            missing -= sent
            if missing <= 0:
                return time + WINDOW_SECONDS
        return now + SHORTEST_WAIT_SECONDS

    def want(self, *, is_waited_for: bool = False) -> float:
        """Note that a link wants budget. Returns the credit, which begins at 0 after a second without use.

        Else it would come as a burst on top of the first second's quota. What links in line wait for stays.
        """
        is_new = self.clock() >= self._wanted_until and not is_waited_for
        self.keep_wanted()
        if is_new and not self._sent and not self.reserved:
            self._credit = min(self._credit, 0.0)
        return self.credit()

    def lend(self, link: Hashable, seconds: float) -> float:
        """Return the bytes that a link may ask for though its answer will be late, so that nothing is set aside for it.

        All such links together have `seconds` of quota, as all may be answered in one moment. Each has an even part, as
        one whose leader is slow keeps its own for long. A link counts for EXPECTED_SECONDS after it has asked, or until
        it ends. Example: of 0.2 s of 10 MB/s each of four links may ask for 500 KB.
        """
        now, lent = self.clock(), self.lent_until
        lent.pop(link, None)
        lent[link] = now + EXPECTED_SECONDS
        while lent[first := next(iter(lent))] <= now:
            del lent[first]
        return (self.rate or 0) * seconds / len(lent)

    def keep_wanted(self) -> None:
        """Note that a link has waited for an answer and wants more: it has wanted budget all the time."""
        now = self.clock()
        self._advance(now)
        self._wanted_until = max(self._wanted_until, now + WINDOW_SECONDS)

    def book(self, more: int, sent: int = 0) -> None:
        """Set `more` bytes aside, or give them back where it is negative, and count `sent` ones as sent just now.

        Those that are sent leave the window a second from now. At rate 0 nothing is owed, for nothing would pay it.
        """
        now = self.clock()
        self._advance(now)
        self.reserved += more
        taken = more + sent
        if taken < 0:
            self._credit = min(self._credit - taken, max(self._credit, self._most_kept(now)))
        elif self.rate:
            self._credit -= taken
        self._send(now, sent)

    def charge(self, size: int) -> None:
        """Count exempt bytes. They owe at most one window of quota: an hour of writes would starve a move for hours."""
        now = self.clock()
        self._advance(now)
        there = min(size, max(0.0, self._credit))
        self._credit -= there
        self._exempt_owed = min(self._exempt_owed + size - there, (self.rate or 0) * WINDOW_SECONDS)
        self._send(now, size, size)

    def hand_over(self) -> LedgerState:
        """Return what it owes and what was sent, for another ledger that earns in its place from now on.

        Called again it returns what has come since, as answers that were under way have passed.
        """
        self._advance(self.clock())
        self._earns = False
        sent = tuple([(at, int(size), int(exempt)) for at, size, exempt in self._sent])
        state = LedgerState(self._credit, self._exempt_owed, sent)
        self._credit = self._exempt_owed = 0.0
        self._sent.clear()
        self._sent_bytes = self.sent_exempt = 0
        return state

    def take_over(self, state: LedgerState) -> None:
        """Owe what another ledger owed, also where that is this one and `hand_over` was in vain.

        Credit of its own is lost: it was earned while the other one spent.
        """
        self._advance(self.clock())
        self._earns = True
        rate = self.rate or 0
        self._credit = min(min(self._credit, 0.0) + state.credit, rate * CREDIT_SECONDS)
        self._exempt_owed = min(self._exempt_owed + state.exempt_owed, rate * WINDOW_SECONDS)
        self._sent = deque(sorted([*self._sent, *map(list, state.sent)]))
        self._sent_bytes += sum([size for _, size, _ in state.sent])
        self.sent_exempt += sum([exempt for _, _, exempt in state.sent])

    def recount(self, accounts: Collection[Account]) -> None:
        """Count anew what all open accounts hold: an exception may have left the counts wrong."""
        self.reserved = sum([one.counted for one in accounts])
        self.waiting_links = sum([one.held_back > 0 for one in accounts])
        self.due = sum([one.due for one in accounts])

    def _limit(self) -> float:
        return (self.rate or 0) * WINDOW_SECONDS * (1 + WINDOW_SLACK)

    def _send(self, now: float, size: int, exempt: int = 0) -> None:
        if size <= 0:
            return
        self._sent_bytes += size
        self.sent_exempt += exempt
        if self._sent and now < self._sent[-1][0]:
            self._sent[-1][1] += size
            self._sent[-1][2] += exempt
        else:
            # Stamped with the end of its bucket, so bytes may leave the window late but never early.
            self._sent.append([now + TICK_SECONDS, size, exempt])

    def _advance(self, now: float) -> None:
        if self.rate and self._earns:
            earned = (now - self._credit_at) * self.rate
            # A debt of moved bytes is paid first. Else records in sync would keep it for as long as they come, and a
            # lower rate, which forgives what they owe, would have to pay it.
            paid = min(self._exempt_owed, max(0.0, self._credit + earned))
            self._exempt_owed -= paid
            self._credit = min(self._credit + earned - paid, max(self._credit, self._most_kept(now)))
        self._credit_at = now
        sent = self._sent
        while sent and sent[0][0] + WINDOW_SECONDS <= now:
            _, size, exempt = sent.popleft()
            self._sent_bytes -= int(size)
            self.sent_exempt -= int(exempt)


@dataclass(slots=True, eq=False)
class Account:
    """What one link holds of a ledger: reserved for the answer to come, or handed over and not known to have come."""

    _ledger: StrictLedger
    _most: float = math.inf  # bytes of it that may arrive, until `let_arrive` says something else
    counted: int = 0  # of all that is set aside: what takes a part of the window
    held_back: int = 0  # the rest of it
    due: int = 0  # of those held back: what may arrive as soon as there is room
    reserved: int = 0
    unconfirmed: int = 0  # handed over, and not known to have arrived
    arrived: int = 0  # of an answer that has not passed whole
    before: int = 0  # bytes of the answer that are not the ledger's: they count as arriving first
    rate: int = 0  # bytes/s at which bytes were set aside last

    def let_arrive(self, most: float, due: float = 0) -> None:
        """Note that at most `most` bytes may arrive from now on, and `due` ones more as soon as there is room."""
        self._most = most
        self._book(due=due)

    def reserve(self, size: int) -> None:
        """Set `size` bytes aside for a request that is about to be forwarded."""
        self.reserved += size
        self.before, self.rate = 0, self._ledger.rate or 0
        self._book()

    def hand_over(self, used: int) -> None:
        """Note that the answer has passed whole, with `used` bytes. They stay set aside until `confirm`.

        What was reserved beyond that is given back; more than was reserved is debt.
        """
        self.unconfirmed += used - self.arrived
        self.reserved = self.arrived = 0
        self._book()

    def confirm(self, used: int) -> None:
        """Note that the follower has received `used` bytes of those handed over."""
        self.unconfirmed -= used
        self._book(used)

    def arrive(self, size: int) -> None:
        """Note that `size` bytes have arrived: of what was handed over, else of an answer that has not passed whole."""
        first = min(size, self.before)
        self.before -= first
        if self.unconfirmed:
            self.confirm(min(self.unconfirmed, size - first))
        else:
            arrived = min(size - first, self.reserved)
            self.arrived += arrived
            self.count_as_sent(arrived)

    def count_as_sent(self, size: int) -> None:
        """Count `size` bytes of those reserved as sent, though the answer has not passed whole."""
        self.reserved -= size
        self._book(size)

    def close(self) -> None:
        """Give back everything. What was not held back may have been sent in part, so it counts as sent."""
        self.reserved = self.unconfirmed = 0
        self._book(self.counted)

    def _book(self, sent: int = 0, due: float = 0) -> None:
        """Tell the ledger how much is set aside now, and that `sent` bytes have been sent."""
        ledger, held = self._ledger, self.reserved + self.unconfirmed
        counted = held if held <= self._most else int(self._most)
        change = counted - self.counted
        if counted < held or self.held_back:
            was_waiting, self.held_back = self.held_back > 0, held - counted
            ledger.due -= self.due
            self.due = int(min(due, self.held_back))
            ledger.due += self.due
            ledger.waiting_links += (self.held_back > 0) - was_waiting
        self.counted = counted
        if sent or change:
            ledger.book(change, sent)


class LinkAccounts:
    """One account with each ledger. Closing them gives back everything, whatever happened to the link before."""

    def __init__(self) -> None:
        self._accounts: dict[StrictLedger, Account] = {}

    def reserve(self, sizes: Mapping[StrictLedger, int]) -> None:
        """Set aside `sizes` for the fetch that is forwarded, beside what is set aside for it already."""
        for ledger, size in sizes.items():
            self._of(ledger).reserve(size)

    def hand_over(self, used: Mapping[StrictLedger, int]) -> None:
        """Note that the answer came, with `used` bytes. These stay reserved until `confirm`; the rest is given back."""
        for ledger in {**self._accounts, **used}:
            self._of(ledger).hand_over(used.get(ledger, 0))

    def confirm(self, *, let_arrive: bool = False) -> None:
        """Note that the follower has received everything handed over: the bytes leave the window a second from now.

        With `let_arrive` nothing is held back any more.
        """
        for account in self._accounts.values():
            if account.unconfirmed:
                account.confirm(account.unconfirmed)
        if let_arrive:
            self.let_arrive(math.inf)

    def begin(self, size: int) -> None:
        """Note that an answer of `size` bytes begins to pass. What is not reserved of them counts as arriving first."""
        for account in self._accounts.values():
            account.before = max(0, size - account.reserved)

    def arrive(self, size: int) -> None:
        """Note that `size` bytes have arrived."""
        for account in self._accounts.values():
            account.arrive(size)

    def let_arrive(self, most: float, due: float = 0) -> None:
        """Note that at most `most` bytes may arrive from now on, and `due` more soon: the others are held back."""
        for account in self._accounts.values():
            account.let_arrive(most, due)

    def room(self) -> float:
        """Return how many bytes more there is room for of what is held back; inf where nothing is.

        What was granted at more than twice the rate of now passes whole: at a rate of 0, or a tenth, records behind it
        would wait for seconds.
        """
        rooms = [
            max(0, int(ledger.room_for_due()))
            for ledger, account in self._accounts.items()
            if account.held_back and ledger.rate and 2 * ledger.rate >= account.rate
        ]
        return min(rooms, default=math.inf)

    def longest_wait(self) -> float:
        """Return how long bytes are held back at most (seconds): all links together then take half of the quota."""
        waits = [2 * ledger.waiting_links * LEAST_BYTES / ledger.rate for ledger in self._accounts if ledger.rate]
        return max(LONGEST_WAIT_SECONDS, *waits) if waits else LONGEST_WAIT_SECONDS

    def count_as_sent(self) -> None:
        """Count what is reserved as sent: no answer came, or not in time. What comes after all counts once more."""
        for account in self._accounts.values():
            account.count_as_sent(account.reserved)

    def account(self, ledger: StrictLedger) -> Account | None:
        """Return this link's account with a ledger; None where it never had one."""
        return self._accounts.get(ledger)

    def close(self) -> None:
        """Give back everything."""
        for account in self._accounts.values():
            account.close()

    def _of(self, ledger: StrictLedger) -> Account:
        account = self._accounts.get(ledger)
        if account is None:
            account = self._accounts[ledger] = Account(ledger)
        return account
