"""Says what passes of the records in an answer, on the leader's side: never more than was granted.

The sidecar stands beside its broker. What the broker returns above a grant need not leave the machine: it is taken out
of the answer (`weir.protocol.take_out`), and from then on the batch's exact size is known. So a grant needs no guess at
what may come, and asking a broker for 0 bytes brings 0 bytes.
"""

from __future__ import annotations

from collections.abc import Collection

from weir.protocol.take_out import Passing
from weir.quota.budget.quota import Quota
from weir.quota.fetch.link_state import LinkState
from weir.quota.fetch.sessions import METADATA_LOG
from weir.quota.fetch.state import InFlight


class Inclusion:
    """Judges the answer to one fetch. It is called for each partition with records, in their order."""

    __slots__ = ("_fetch", "_state")

    def __init__(self, state: LinkState, fetch: InFlight) -> None:
        self._state = state
        self._fetch = fetch

    def __call__(self, key: bytes, partition: int, size: int) -> Passing:
        """Return what passes of `size` bytes. `key` names a topic as requests do."""
        state = self._state
        topic = state.partitions.topics.get(key)
        if topic is None or (replica := topic.partitions.get(partition)) is None:
            return Passing.ALL
        granted = self._fetch.grants.get(replica)
        if granted is None:
            is_held_back = replica.is_waiting and state.throttle.is_throttling
            # Kafka's Raft client fetches the metadata log with 0 bytes, and gets records all the same.
            asks_for_none = not replica.max_bytes and key not in METADATA_LOG
            return Passing.NOTHING if is_held_back or asks_for_none else Passing.ALL
        quotas = replica.quotas
        if any([not quota.rate for quota in quotas]):  # it became 0 after the grant
            return Passing.NOTHING
        if size > granted and not self._pays([quota for quota in quotas if quota.reserves], size - granted):
            return Passing.NOTHING
        return Passing.WHOLE_BATCHES

    def _pays(self, quotas: Collection[Quota], extra: int) -> bool:
        """Reserve `extra` bytes for a first batch that is larger than its grant, if every quota has room for them."""
        if any([quota.ledger.room() < extra for quota in quotas]):
            return False
        self._fetch.reserved = self._state.accounts.reserve(
            {quota.ledger: extra for quota in quotas}, self._fetch.reserved
        )
        return True
