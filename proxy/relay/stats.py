"""What the relay counts, as plain integers: the metrics collector reads them when it is scraped."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from quota.settings import SideName

MOST_VERSIONS: Final = 100
"""Versions that are counted apart: whoever makes versions up gets no label for each."""

MOST_PEERS: Final = 1000
"""Replica ids that are counted apart; a cluster has fewer brokers."""

OTHER_PEERS: Final = -1
"""The peer of connections whose replica id is none of those."""


@dataclass(slots=True)
class RelayStats:
    """Counts of all listeners of one side. Everything but `connections` and `held` only ever grows."""

    side: SideName
    connections: int = 0
    """Clients connected now, those still waiting for the upstream included."""
    connections_accepted: int = 0
    held: int = 0
    """Replica fetches held back now."""
    fetches_held: int = 0
    """Replica fetches that were held at least once."""
    fetches_answered: int = 0
    """Replica fetches that the sidecar answered itself."""
    fetch_requests: Counter[int] = field(default_factory=Counter)
    """Fetch requests of replicas (decoded or not) by api_version."""
    passthrough: Counter[str] = field(default_factory=Counter)
    """What passed undecoded, by reason. Requests: `fetch_version`, `fetch_too_large`, `fetch_malformed`,
    `not_a_replica`. Connections: `tls`, `sasl`, `not_kafka`, `throttle_error`, `too_many_topics`,
    `too_many_partitions`."""
    protocol_errors: Counter[str] = field(default_factory=Counter)
    """Connections closed because of a peer's bytes, by `ProtocolError.kind`; `fetch_memory`: for want of memory;
    `fetch_stalled`: half of a fetch came, and the rest of it did not."""
    upstream_failures: Counter[str] = field(default_factory=Counter)
    """Connections that the upstream did not take: `refused`, `timeout`, `unreachable`."""
    throttle_errors: int = 0
    """Unexpected exceptions inside the throttle (bugs): each sent one connection through untouched."""
    relay_errors: int = 0
    """Unexpected exceptions inside the relay itself (bugs): each closed one connection."""
    accept_errors: int = 0
    """Times that accepting paused because the process or the machine was out of descriptors or memory."""
    links_of_other_peers: int = 0
    """Connections of replica ids beyond MOST_PEERS."""
    peers: set[int] = field(default_factory=set)
    """The replica ids that are counted apart."""

    def peer_of(self, replica_id: int) -> int:
        """Return the peer that a connection of `replica_id` is counted under."""
        if replica_id not in self.peers:
            if len(self.peers) >= MOST_PEERS:
                self.links_of_other_peers += 1
                return OTHER_PEERS
            self.peers.add(replica_id)
        return replica_id

    def count_undecoded(self, api_version: int, reason: str) -> None:
        """Count a Fetch request that passes undecoded."""
        self.passthrough[reason] += 1
        if api_version in self.fetch_requests or len(self.fetch_requests) < MOST_VERSIONS:
            self.fetch_requests[api_version] += 1
