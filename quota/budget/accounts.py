"""What one link holds of each ledger that its bytes are counted in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from weir.quota.budget.ledger import Account, StrictLedger
from weir.quota.budget.quota import Part, Quota

LEAST_BYTES: Final = 2**13
"""What may be on its way to a follower at least, however slow it is."""

LONGEST_WAIT_SECONDS: Final = 0.8
"""How long bytes are held back at most while there is no room for them, unless very many links hold some back."""

Bytes = Mapping[StrictLedger, int]


class LinkAccounts:
    """One account with each ledger. Closing them gives back everything, whatever happened to the link before."""

    __slots__ = ("_accounts", "_arrived", "_due", "_may_arrive", "_unconfirmed")

    def __init__(self) -> None:
        self._accounts: dict[StrictLedger, Account] = {}
        self._unconfirmed: dict[StrictLedger, int] = {}  # handed over, and not known to have arrived
        self._arrived: dict[StrictLedger, int] = {}  # of an answer that has not passed whole
        self._may_arrive = math.inf  # bytes; the others are held back
        self._due: float = 0  # bytes of those that are to arrive as soon as there is room

    def reserve(self, parts: Mapping[Quota, Part]) -> Bytes:
        """Set aside what a fetch takes of each quota.

        Returns the bytes by ledger, to be handed over or counted as sent later.
        """
        reserved = {}
        for quota, part in parts.items():
            if quota.reserves:
                self._of(quota.ledger).reserve(part.size)
                reserved[quota.ledger] = part.size
        return reserved

    def reserve_more(self, reserved: Bytes, quotas: Iterable[Quota], size: int) -> Bytes:
        """Set aside `size` bytes more of each quota, for a fetch that has `reserved`. Returns what it has then."""
        more = dict(reserved)
        for quota in quotas:
            self._of(quota.ledger).reserve(size)
            more[quota.ledger] = more.get(quota.ledger, 0) + size
        return more

    def hand_over(self, reserved: Bytes, used: Bytes) -> None:
        """Note that the answer came, with `used` bytes. These stay reserved until `confirm`; the rest is given back."""
        arrived, self._arrived = self._arrived, {}
        for ledger in {**reserved, **used}:
            size = used.get(ledger, 0) - arrived.get(ledger, 0)
            self._of(ledger).hand_over(reserved.get(ledger, 0), size)
            self._unconfirmed[ledger] = self._unconfirmed.get(ledger, 0) + size

    def confirm(self) -> None:
        """Note that the follower has received everything handed over: the bytes leave the window a second from now."""
        if self._unconfirmed:
            unconfirmed, self._unconfirmed = self._unconfirmed, {}
            for ledger, size in unconfirmed.items():
                self._of(ledger).confirm(size)

    def arrive(self, reserved: Bytes, size: int) -> Bytes:
        """Note that `size` bytes have arrived of what was handed over, or else of an answer that has not passed whole.

        `reserved` is what is set aside for such an answer; returns what still is.
        """
        if self._unconfirmed:
            for ledger, before in self._unconfirmed.items():
                arrived = min(before, size)
                self._unconfirmed[ledger] = before - arrived
                self._of(ledger).confirm(arrived)
            return reserved
        still = {}
        for ledger, before in reserved.items():
            arrived = min(before, size)
            self._of(ledger).hand_over(arrived, arrived)
            self._of(ledger).confirm(arrived)
            self._arrived[ledger] = self._arrived.get(ledger, 0) + arrived
            still[ledger] = before - arrived
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
        """Return how long bytes are held back at most (seconds).

        All links together then take half of the quota, however many they are.
        """
        waits = [2 * ledger.waiting_links * LEAST_BYTES / ledger.rate for ledger in self._accounts if ledger.rate]
        return max(LONGEST_WAIT_SECONDS, *waits) if waits else LONGEST_WAIT_SECONDS

    def count_as_sent(self, reserved: Bytes) -> None:
        """Count `reserved` bytes as sent: no answer came, or not in time, and what went of it is not known."""
        for ledger, size in reserved.items():
            self._of(ledger).count_as_sent(size)

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
