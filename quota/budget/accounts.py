"""What one link holds of the ledgers that its bytes belong to."""

from __future__ import annotations

from collections.abc import Mapping

from quota.budget.ledger import Account, StrictLedger
from quota.budget.quota import Part, Quota

Bytes = Mapping[StrictLedger, int]


class LinkAccounts:
    """One account with each ledger; closing them gives back all, whatever happened to the link before."""

    __slots__ = ("_accounts", "_unconfirmed")

    def __init__(self) -> None:
        self._accounts: dict[StrictLedger, Account] = {}
        self._unconfirmed: dict[StrictLedger, int] = {}  # sent; the follower's next request will show that it arrived

    def reserve(self, parts: Mapping[Quota, Part]) -> Bytes:
        """Set aside what a fetch takes of each quota; returns what is to be handed over or settled later."""
        reserved = {}
        for quota, part in parts.items():
            if quota.reserves:
                self._of(quota.ledger).reserve(part.reserved)
                reserved[quota.ledger] = part.reserved
        return reserved

    def hand_over(self, reserved: Bytes, used: Bytes) -> None:
        """The answer came, with `used` bytes. They stay reserved until `confirm`; the rest flows back."""
        for ledger in {**reserved, **used}:
            size = used.get(ledger, 0)
            self._of(ledger).hand_over(reserved.get(ledger, 0), size)
            self._unconfirmed[ledger] = self._unconfirmed.get(ledger, 0) + size

    def confirm(self) -> None:
        """The follower has taken in all that was handed over: from now on it leaves the window by time."""
        if self._unconfirmed:
            unconfirmed, self._unconfirmed = self._unconfirmed, {}
            for ledger, size in unconfirmed.items():
                self._of(ledger).confirm(size)

    def count_as_sent(self, reserved: Bytes) -> None:
        """No answer will come, or not in time. What was reserved may have been sent in part: it counts as sent."""
        for ledger, size in reserved.items():
            self._of(ledger).settle(size, size)

    def held(self, ledger: StrictLedger) -> int:
        """The bytes held of a ledger."""
        account = self._accounts.get(ledger)
        return 0 if account is None else account.held

    def close(self) -> None:
        """Hold nothing any more."""
        for account in self._accounts.values():
            account.close()

    def _of(self, ledger: StrictLedger) -> Account:
        account = self._accounts.get(ledger)
        if account is None:
            account = self._accounts[ledger] = Account(ledger)
        return account
