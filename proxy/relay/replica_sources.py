# SPDX-License-Identifier: Apache-2.0
"""Who may be a replica: whose fetches are throttled as a broker's, as a stranger's, or pass like a consumer's.

A replica that passed as a consumer would escape the quota, and an address may be new: a pod comes back with another one
while its name still leads to the old one. So who claims to be a broker is throttled, unless a configuration says that
it is none. Who it is decides only whose turns it takes: a stranger cannot take those of whom it claims to be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from weir.proxy.config.address import IPAddress, Network, numeric_address

Addresses = Mapping[int, frozenset[IPAddress]]
Standing = Literal["replica", "stranger", "consumer"]

SEEN_SECONDS: Final = 60.0
"""A broker that fetched from its own address within this time is not believed to fetch from another one."""

_LOOPBACK: Final = numeric_address("127.0.0.1")


class ReplicaSources:
    """Judges the replica fetches of one ingress listener. `networks` as configured; None: judge by the cluster.

    With `networks`, who fetches from anywhere else is a consumer. Without, everyone is believed until the brokers'
    addresses are learnt. From then on who fetches from another address is a stranger if its replica id is unknown to
    the cluster, or belongs to a broker that fetches from its own address. `clock` gives monotonic seconds.
    """

    def __init__(self, networks: Sequence[Network] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.networks = networks
        self._clock = clock
        self._brokers: Addresses = {}
        self._addresses: frozenset[IPAddress] = frozenset()
        self._seen_at: dict[int, float] = {}  # when each broker last fetched from its own address

    def learn(self, brokers: Addresses) -> None:
        """Take the addresses of the cluster's brokers by id. A broker whose name is not resolved has none."""
        self._brokers = {broker: frozenset(map(_place, found)) for broker, found in brokers.items()}
        self._addresses = frozenset().union(*self._brokers.values())

    def standing(self, host: str, replica_id: int) -> Standing:
        """Return what to take the sender of a fetch with `replica_id` from `host` (an IP address) for."""
        address = numeric_address(host)
        if self.networks is not None:
            is_inside = address is not None and any(address in network for network in self.networks)
            return "replica" if is_inside else "consumer"
        if not self._brokers or address is None:
            return "replica"
        now, is_known = self._clock(), replica_id in self._brokers
        if _place(address) in self._addresses:
            if is_known:
                self._seen_at[replica_id] = now
            return "replica"
        is_elsewhere = now - self._seen_at.get(replica_id, float("-inf")) <= SEEN_SECONDS
        return "replica" if is_known and not is_elsewhere else "stranger"


def _place(address: IPAddress) -> IPAddress:
    """Return one address for all of loopback: clients there come from 127.0.0.1, whatever they advertise."""
    return _LOOPBACK if address.is_loopback and _LOOPBACK is not None else address
