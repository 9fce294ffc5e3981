# SPDX-License-Identifier: Apache-2.0
"""What the relay counts, as plain integers, which the metrics collector reads at each scrape."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.relay.admission import Refusal
from weir.proxy.relay.open_link import Relayed, Sender
from weir.quota.settings import SideName

MOST_VERSIONS: Final = 100
"""The most API versions that are counted one by one, so that made-up ones do not get a label each."""

MOST_PEERS: Final = 1000
"""The most replica ids that are counted one by one. A cluster has fewer brokers."""

OTHER_PEERS: Final = -1
"""The peer that all further replica ids are counted under."""


@dataclass(slots=True)
class RelayStats:
    """Counts of all listeners of one side. All but `connections` and `opaque` only grow."""

    side: SideName
    connections: int = 0
    """Clients connected now, including those that still wait for the upstream."""
    connections_accepted: int = 0
    connections_refused: Counter[Refusal] = field(default_factory=Counter)
    """Connections that were closed at once, as there were too many."""
    connections_dismissed: int = 0
    """Connections that were closed as no request came."""
    connections_silent: int = 0
    """Connections that have ended without a byte from their client, as of who only looks whether the port is open."""
    fetches_held: int = 0
    """Replica fetches that were held at least once."""
    fetches_answered: int = 0
    """Replica fetches that the sidecar answered itself."""
    fetch_requests: Counter[int] = field(default_factory=Counter)
    """Fetch requests of replicas (decoded or not) by api_version."""
    passthrough: Counter[str] = field(default_factory=Counter)
    """What passed undecoded, by reason.

    Requests: `fetch_version`, `fetch_too_large`, `fetch_malformed`, `not_a_replica`. Connections: `tls`, `sasl`,
    `not_kafka`, `too_many_topics`, `too_many_partitions`.
    """
    protocol_errors: Counter[str] = field(default_factory=Counter)
    """Connections closed because of a peer's bytes, by `ProtocolError.kind`.

    More kinds are `fetch_memory` (too little memory), `fetch_stalled` (the rest of a fetch did not come) and `tls` (it
    broke after the handshake).
    """
    upstream_failures: Counter[str] = field(default_factory=Counter)
    """Connections that the upstream did not accept: `refused`, `timeout`, `unreachable`."""
    throttle_errors: int = 0
    """Unexpected exceptions in the throttle (bugs). Each closed one connection."""
    relay_errors: int = 0
    """Unexpected exceptions in the relay itself (bugs). Each closed one connection."""
    stranger_fetches: int = 0
    """Fetches with a replica id of who is not known to be that broker: throttled, as a stranger's."""
    accept_errors: int = 0
    """How often accepting paused, as the process or the machine had no descriptors or memory left."""
    links_of_other_peers: int = 0
    """Connections with replica ids beyond MOST_PEERS."""
    peers: set[int] = field(default_factory=set)
    """The replica ids that are counted one by one."""
    opaque: Counter[str] = field(default_factory=Counter)
    """Connections open now whose bytes are not understood any more, by reason."""
    clients_bytes: Counter[Sender] = field(default_factory=Counter)
    """Bytes read so far of clients' links, by the peer that sent them. Each read counts them."""
    other_bytes: Counter[Sender] = field(default_factory=Counter)
    """Bytes read so far of all other links: replicas', and those whose bytes are not understood."""

    @property
    def relayed(self) -> Relayed:
        """All bytes of all links so far."""
        return _relayed(self.clients_bytes + self.other_bytes)

    @property
    def of_clients(self) -> Relayed:
        """The bytes of all clients' links so far."""
        return _relayed(self.clients_bytes)

    def not_clients(self, relayed: Relayed) -> None:
        """Note that a link is not a client's, which had relayed so much before that was known.

        The total of clients is less by that then, such as 100 bytes of a handshake.
        """
        sent: dict[Sender, int] = {"client": relayed.requests, "upstream": relayed.answers}
        self.clients_bytes.subtract(sent)
        self.other_bytes.update(sent)

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


def _relayed(sent: Counter[Sender]) -> Relayed:
    return Relayed(sent["client"], sent["upstream"])
