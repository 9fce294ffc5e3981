"""What one link holds of each ledger that its bytes are counted in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from weir.quota.budget.ledger import Account, StrictLedger
from weir.quota.budget.quota import Part, Quota

Bytes = Mapping[StrictLedger, int]


class LinkAccounts:
    """One account with each ledger. Closing them gives back everything, whatever happened to the link before."""

    __slots__ = ("_accounts", "_arrived", "_unconfirmed", "may_arrive")

    def __init__(self) -> None:
        self._accounts: dict[StrictLedger, Account] = {}
        self._unconfirmed: dict[StrictLedger, int] = {}  # handed over, and not known to have arrived
        self._arrived: dict[StrictLedger, int] = {}  # of an answer that has not passed whole
        self.may_arrive = math.inf
        """How many bytes may arrive; the others are held back."""

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
        self._confirm(0, math.inf)

    def arrive(self, reserved: Bytes, on_way: float) -> Bytes:
        """Note that all but `on_way` bytes have arrived of what was handed over, or else of what may arrive.

        `reserved` is what is set aside for an answer that has not passed whole; returns what still is.
        """
        arrived = self.may_arrive - on_way
        self._confirm(on_way if arrived == math.inf else 0, arrived)
        if self._unconfirmed or not 0 < arrived < math.inf:
            return reserved
        still = {}
        for ledger, before in reserved.items():
            size = min(before, int(arrived))
            self._of(ledger).hand_over(size, size)
            self._of(ledger).confirm(size)
            still[ledger] = before - size
            self._arrived[ledger] = self._arrived.get(ledger, 0) + size
        return still

    def let_arrive(self, most: float) -> None:
        """Note that at most `most` bytes may arrive from now on: the others are held back."""
        self.may_arrive = most
        for account in self._accounts.values():
            account.let_arrive(most)

    def room(self) -> float:
        """Return how many bytes more the windows have room for of what is held back; inf where nothing is."""
        rooms = [
            max(0, int(min(ledger.room(), ledger.credit())))
            for ledger, one in self._accounts.items()
            if one.held > one.counted and ledger.rate
        ]
        return min(rooms, default=math.inf)

    def _confirm(self, left: float, most: float) -> None:
        if self._unconfirmed:
            unconfirmed, self._unconfirmed = self._unconfirmed, {}
            for ledger, size in unconfirmed.items():
                arrived = size if left == 0 and most == math.inf else int(max(0, min(size - left, most)))
                if arrived != size:
                    self._unconfirmed[ledger] = size - arrived
                self._of(ledger).confirm(arrived)

    def count_as_sent(self, reserved: Bytes) -> None:
        """Count `reserved` bytes as sent: no answer came, or not in time, and what went of it is not known."""
        for ledger, size in reserved.items():
            self._of(ledger).count_as_sent(size)

    def counted(self, ledger: StrictLedger) -> int:
        """The bytes that this link takes of a ledger's window."""
        account = self._accounts.get(ledger)
        return 0 if account is None else account.counted

    def close(self) -> None:
        """Give back everything."""
        for account in self._accounts.values():
            account.close()

    def _of(self, ledger: StrictLedger) -> Account:
        account = self._accounts.get(ledger)
        if account is None:
            account = self._accounts[ledger] = Account(ledger, self.may_arrive)
        return account
