"""Who may be a replica: fetches from which addresses are throttled, and which pass like a consumer's.

A replica taken for a stranger escapes the quota. A stranger taken for a replica is throttled, which harms hardly
anyone. So without a configuration a client's claim is doubted only where the cluster shows that it cannot be true.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from weir.proxy.config.address import IPAddress, Network, numeric_address

Addresses = Mapping[int, frozenset[IPAddress]]

SEEN_SECONDS: Final = 60.0
"""A broker that fetched from its own address within this time does not fetch from another one."""

GRACE_SECONDS: Final = 30.0
"""How long a replica id is believed that the cluster does not list yet: a broker fetches before others see it."""

_MOST_STRANGERS: Final = 1000
_LOOPBACK: Final = numeric_address("127.0.0.1")


class ReplicaSources:
    """Judges the replica fetches of one ingress listener. `networks` as configured; None: judge by the cluster.

    With `networks`, a fetch from anywhere else is no replica's. Without, everyone is believed until the brokers'
    addresses are learnt. From then on a fetch from another address is no replica's if its replica id is unknown to the
    cluster, or belongs to a broker that fetches from its own address. `clock` gives monotonic seconds.
    """

    def __init__(self, networks: Sequence[Network] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.networks = networks
        self._clock = clock
        self._brokers: Addresses = {}
        self._addresses: frozenset[IPAddress] = frozenset()
        self._seen_at: dict[int, float] = {}  # when each broker last fetched from its own address
        self._strangers: dict[int, float] = {}  # when each replica id that is no broker's was first seen

    def learn(self, brokers: Addresses) -> None:
        """Take the addresses of the cluster's brokers by id. A broker whose name is not resolved has none."""
        self._brokers = {broker: frozenset(map(_place, found)) for broker, found in brokers.items()}
        self._addresses = frozenset().union(*self._brokers.values())

    def admits(self, host: str, replica_id: int) -> bool:
        """Return whether a fetch with `replica_id` from `host` (an IP address) is a replica's."""
        address = numeric_address(host)
        if self.networks is not None:
            return address is not None and any(address in network for network in self.networks)
        if not self._brokers or address is None:
            return True
        now, own = self._clock(), self._brokers.get(replica_id)
        if _place(address) in self._addresses:
            if own is not None:
                self._seen_at[replica_id] = now
            return True
        if own is not None:
            return now - self._seen_at.get(replica_id, float("-inf")) > SEEN_SECONDS
        if replica_id not in self._strangers and len(self._strangers) >= _MOST_STRANGERS:
            return False
        return now - self._strangers.setdefault(replica_id, now) <= GRACE_SECONDS


def _place(address: IPAddress) -> IPAddress:
    """Return one address for all of loopback: clients there come from 127.0.0.1, whatever they advertise."""
    return _LOOPBACK if address.is_loopback and _LOOPBACK is not None else address
