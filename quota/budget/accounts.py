"""What one link holds of each ledger that its bytes are counted in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weir.quota.budget.ledger import Account, StrictLedger

LEAST_BYTES: Final = 2**13  # what may be on its way to a follower at least, however slow it is
LONGEST_WAIT_SECONDS: Final = 0.8  # how long bytes are held back for want of room, unless very many links hold some

Bytes = Mapping[StrictLedger, int]


class LinkAccounts:
    """One account with each ledger. Closing them gives back everything, whatever happened to the link before."""

    def __init__(self) -> None:
        self._accounts: dict[StrictLedger, Account] = {}
        self._may_arrive = math.inf  # bytes; the others are held back
        self._due: float = 0  # bytes of those that are to arrive as soon as there is room

    def reserve(self, sizes: Bytes, reserved: Bytes | None = None) -> Bytes:
        """Set aside `sizes` for a fetch, beside what is `reserved` for it. Returns all that is set aside then."""
        total = dict(reserved or {})
        for ledger, size in sizes.items():
            self._of(ledger).reserve(size)
            total[ledger] = total.get(ledger, 0) + size
        return total

    def hand_over(self, reserved: Bytes, used: Bytes) -> None:
        """Note that the answer came, with `used` bytes. These stay reserved until `confirm`; the rest is given back."""
        for ledger in {**reserved, **used}:
            account = self._of(ledger)
            arrived, account.arrived = account.arrived, 0
            account.hand_over(reserved.get(ledger, 0), used.get(ledger, 0) - arrived)

    def confirm(self) -> None:
        """Note that the follower has received everything handed over: the bytes leave the window a second from now."""
        for account in self._accounts.values():
            if account.unconfirmed:
                account.confirm(account.unconfirmed)

    def arrive(self, reserved: Bytes, size: int) -> Bytes:
        """Note that `size` bytes have arrived of what was handed over, or else of an answer that has not passed whole.

        `reserved` is what is set aside for such an answer; returns what still is.
        """
        waiting = [account for account in self._accounts.values() if account.unconfirmed]
        for account in waiting:
            account.confirm(min(account.unconfirmed, size))
        if waiting:
            return reserved
        still = {ledger: max(0, before - size) for ledger, before in reserved.items()}
        for ledger, left in still.items():
            self._of(ledger).arrived += reserved[ledger] - left
            self.count_as_sent({ledger: reserved[ledger] - left})
        return still

    def let_arrive(self, most: float, due: float = 0) -> None:
        """Note that at most `most` bytes may arrive from now on, and `due` more soon: the others are held back."""
        if (most, due) != (self._may_arrive, self._due):
            self._may_arrive, self._due = most, due
            for account in self._accounts.values():
                account.let_arrive(most, due)

    def room(self) -> float:
        """Return how many bytes more there is room for of what is held back; inf where nothing is."""
        rooms = [
            max(0, int(ledger.room_for_due()))
            for ledger, account in self._accounts.items()
            if account.held > account.counted and ledger.rate is not None
        ]
        return min(rooms, default=math.inf)

    def longest_wait(self) -> float:
        """Return how long bytes are held back at most (seconds): all links together then take half of the quota."""
        waits = [2 * ledger.waiting_links * LEAST_BYTES / ledger.rate for ledger in self._accounts if ledger.rate]
        return max(LONGEST_WAIT_SECONDS, *waits) if waits else LONGEST_WAIT_SECONDS

    def count_as_sent(self, reserved: Bytes) -> None:
        """Count `reserved` bytes as sent: no answer came, or not in time, and what went of it is not known."""
        for ledger, size in reserved.items():
            self._of(ledger).hand_over(size, size)
            self._of(ledger).confirm(size)

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
            account = self._accounts[ledger] = Account(ledger, self._may_arrive)
        return account
