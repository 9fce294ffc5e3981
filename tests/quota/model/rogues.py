# SPDX-License-Identifier: Apache-2.0
"""Peers that break the rules: each reaches the sidecar before the leader, and sends what it likes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.wire import MAX_WAIT_MS, PARTITION_MAX_BYTES, Response, entry_packer, replica_fetch
from tests.quota.model.chain import Chain
from tests.quota.model.follower import Fetcher, Replica
from tests.quota.model.hops import Sidecar
from tests.quota.model.leader import LeaderNode
from tests.quota.model.scenario import Rogue, Scenario
from tests.quota.model.world import World
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request, encode_fetch_request
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import SIZE
from weir.protocol.request_topics import RequestTopic

if TYPE_CHECKING:
    from tests.quota.model.run import Run

ROGUE_ID = 199
JOINS_AFTER = 1.0
_PAUSE_SECONDS = 0.03  # between two fetches of one connection
_MOST_FETCHES = 60  # of one connection
SMALLEST, LARGEST = -(2**31), 2**31 - 1
_CONNECTIONS: dict[Rogue, int] = {"long wait": 2, "never reads": 3, "many connections": 8}
_IN_FLIGHT = 3  # of one connection, where a peer does not wait for answers


class Peer:
    """One connection of a rogue. It asks again when it was answered, and connects again when it was closed."""

    is_honest = False

    def __init__(self, run: Run, rogue: Rogue) -> None:
        self.world: World = run.world
        self.scenario: Scenario = run.scenario
        self.chain: Chain | None = None
        self.replica_id = ROGUE_ID
        self.reads = rogue not in ("negative", "never reads")
        self.rogue = rogue
        self._leader: LeaderNode = run.leaders[0]
        self._sidecars: list[Sidecar] = run.path(0, 0)[-1:]
        self._requests: Iterator[FetchRequest] = iter(())
        self._numbers = itertools.count(1)
        throttled = frozenset[Key]().union(*[term.keys for term in self._sidecars[0].terms(ROGUE_ID, 1)])
        logs = list(self._leader.logs.values())
        listed = [log for log in logs if log.key in throttled] or logs
        self.behind = max(listed, key=lambda log: log.ends[-1])
        rest = [log for log in listed if log is not self.behind]
        self.second = max(rest, key=lambda log: log.ends[-1]) if rest else self.behind
        self.other = min(logs, key=lambda log: log.ends[-1])

    def connect(self) -> None:
        """A new connection."""
        scenario = self.scenario
        self._requests = itertools.islice(self._all_requests(), _MOST_FETCHES)
        self.chain = Chain(self.world, self._sidecars, self._leader, self, scenario.bandwidth, scenario.latency)
        for _ in range(_IN_FLIGHT if self.rogue == "several in flight" else 1):
            self.ask(self.chain)

    def ask(self, chain: Chain) -> None:
        """Send the next request, as bytes: a sidecar may find that they are no fetch."""
        request = next(self._requests, None)
        if request is None or not chain.is_open:
            return
        try:
            decoded = decode_fetch_request(encode_fetch_request(request)[SIZE.size :])
        except MalformedFrame:
            chain.close()
            return
        chain.ask(decoded)
        self.world.exchanges -= 1  # they are not what a run is measured by
        if not self.reads:
            self.world.after(2.0, self._come_back, chain)

    def take(self, response: Response) -> None:
        """An answer arrived."""
        if self.chain is not None:
            self.world.after(_PAUSE_SECONDS, self.ask, self.chain)

    def _come_back(self, chain: Chain) -> None:
        if self.rogue == "never reads" and chain is self.chain:
            chain.close()
            self.connect()

    # What it asks for

    def _all_requests(self) -> Iterator[FetchRequest]:
        version = self.scenario.version
        behind, other = self.behind, self.other
        if self.rogue == "negative":
            yield self._request(max(version, 4), [(behind, 0, PARTITION_MAX_BYTES)], max_bytes=SMALLEST)
        elif self.rogue == "never reads":
            yield from itertools.repeat(self._request(version, [(behind, 0, PARTITION_MAX_BYTES)]))
        elif self.rogue == "long wait":
            for _ in range(2):
                yield self._request(
                    version,
                    [(behind, 0, PARTITION_MAX_BYTES), (other, other.end, PARTITION_MAX_BYTES)],
                    max_wait_ms=LARGEST,
                )
        elif self.rogue == "high watermark":
            version = version if FETCH_VERSIONS[version].names_topics_by_id else min(version, 6)
            while True:
                yield self._request(version, [(behind, behind.end, PARTITION_MAX_BYTES)], max_wait_ms=0)
                for offset in range(0, behind.end, max(1, behind.end // 20)):
                    yield self._request(version, [(behind, offset, PARTITION_MAX_BYTES)])
        elif self.rogue == "versions":
            by_id = FETCH_VERSIONS[version].names_topics_by_id
            versions = (13, 17, 15, 18) if by_id else (3, 7, 11, 12, 4, 5)
            for number in itertools.count():
                yield self._request(versions[number % len(versions)], [(behind, number, PARTITION_MAX_BYTES)])
        elif self.rogue == "twice":
            for number in itertools.count():
                wanted = [(behind, number, PARTITION_MAX_BYTES), (self.second, number, PARTITION_MAX_BYTES)]
                yield self._request(version, wanted)
                yield self._request(version, wanted[:1] * 2)
        elif self.rogue == "several in flight":
            for number in itertools.count():
                yield self._request(version, [(behind, number, PARTITION_MAX_BYTES)])
        elif self.rogue == "made up":
            for number in itertools.count():
                yield self._made_up(number)

    def _request(
        self,
        version: int,
        wanted: list[tuple[Log, int, int]],
        *,
        max_bytes: int = LARGEST,
        max_wait_ms: int = MAX_WAIT_MS,
        replica_id: int = ROGUE_ID,
    ) -> FetchRequest:
        pack, row = entry_packer(version), FETCH_VERSIONS[version]
        topics = []
        for log, offset, size in wanted:
            entry = pack(log.key[1], 5, offset, size)
            name = log.key[0].ljust(16, b"\x01") if row.names_topics_by_id else log.key[0]  # made-up ones have no id
            topics.append(RequestTopic(name, entry, len(entry)))
        return replica_fetch(
            version,
            topics,
            replica_id=replica_id,
            correlation_id=next(self._numbers),
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            session_epoch=0,
        )

    def _made_up(self, number: int) -> FetchRequest:
        made_up = [Log.of_pattern((b"made-up-%08d" % (number * 10 + one), one), (1,), 0) for one in range(10)]
        wanted = [(log, 0, PARTITION_MAX_BYTES) for log in made_up]
        return self._request(self.scenario.version, wanted, replica_id=ROGUE_ID + 1 + number, max_wait_ms=50)


class Liar(Fetcher):
    """One of many connections that say they are one replica, and fetch as fast as they may."""

    is_honest = False


def join(run: Run, rogue: Rogue) -> list[Peer | Liar]:
    """Have a rogue join."""
    peers: list[Peer | Liar] = []
    for number in range(_CONNECTIONS.get(rogue, 1)):
        if rogue == "many connections":
            peers.append(_join_as_replica(run, number))
        else:
            peer = Peer(run, rogue)
            peers.append(peer)
            run.world.after(JOINS_AFTER + 0.01 * number, peer.connect)
    return peers


def _join_as_replica(run: Run, number: int) -> Liar:
    log = Peer(run, "many connections").behind
    liar = Liar(run.world, ROGUE_ID, run.scenario.version, [Replica(log, 0, run.world.now)])

    def connect() -> None:
        scenario = run.scenario
        path = run.path(0, 0)[-1:]
        liar.connect(Chain(run.world, path, run.leaders[0], liar, scenario.bandwidth, scenario.latency))

    run.world.after(JOINS_AFTER + 0.01 * number, connect)
    return liar
