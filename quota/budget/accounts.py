"""What one link holds of each ledger that its bytes are counted in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weir.quota.budget.ledger import Account, StrictLedger
from weir.quota.budget.quota import Part, Quota

Bytes = Mapping[StrictLedger, int]


class LinkAccounts:
    """One account with each ledger. Closing them gives back everything, whatever happened to the link before."""

    __slots__ = ("_accounts", "_unconfirmed")

    def __init__(self) -> None:
        self._accounts: dict[StrictLedger, Account] = {}
        self._unconfirmed: dict[StrictLedger, int] = {}  # sent; confirmed by the follower's next request

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
        for ledger in {**reserved, **used}:
            size = used.get(ledger, 0)
            self._of(ledger).hand_over(reserved.get(ledger, 0), size)
            self._unconfirmed[ledger] = self._unconfirmed.get(ledger, 0) + size

    def confirm(self) -> None:
        """Note that the follower has received everything handed over: the bytes leave the window a second from now."""
        if self._unconfirmed:
            unconfirmed, self._unconfirmed = self._unconfirmed, {}
            for ledger, size in unconfirmed.items():
                self._of(ledger).confirm(size)

    def count_as_sent(self, reserved: Bytes) -> None:
        """Count `reserved` bytes as sent: no answer came, or not in time, and what went of it is not known."""
        for ledger, size in reserved.items():
            self._of(ledger).count_as_sent(size)

    def held(self, ledger: StrictLedger) -> int:
        """The bytes that this link holds of a ledger."""
        account = self._accounts.get(ledger)
        return 0 if account is None else account.held

    def close(self) -> None:
        """Give back everything."""
        for account in self._accounts.values():
            account.close()

    def _of(self, ledger: StrictLedger) -> Account:
        account = self._accounts.get(ledger)
        if account is None:
            account = self._accounts[ledger] = Account(ledger)
        return account
