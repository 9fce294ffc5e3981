# SPDX-License-Identifier: Apache-2.0
"""A leader and followers with fetch sessions, and weir between them."""

from dataclasses import dataclass

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Leader, Log
from tests.fakes.kafka.sessions import Key
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.protocol.fetch_session import INITIAL_EPOCH
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.quota.fetch.decisions import Forward
from weir.quota.fetch.state import LeaderEntry
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000


BATCH = 10_300


PARTITIONS = 20


TOPIC_ID = bytes(range(16))


VERSIONS = (7, 9, 11, 12, 13, 17)


@dataclass
class Cluster:
    """A follower behind one sidecar for each throttle, and the leader."""

    clock: MovedClock
    throttles: list[Throttle]
    hops: list[Hop]
    leader: SessionLeader
    follower: SessionFollower

    @property
    def asked(self) -> dict[Key, int]:
        """What the last sidecar asked the leader for with caps of its own: partition_max_bytes."""
        link = self.hops[-1].link
        row = FETCH_VERSIONS[self.follower.version]
        partitions = self.leader.sessions[link.sessions.leader.id].partitions
        capped = [
            (one.topic.key, one.partition) for one in link.sessions.touched if one.at_leader is LeaderEntry.CAPPED
        ]
        return {key: row.requested(len(partitions[key].entry)).unpack(partitions[key].entry)[2] for key in capped}

    def check(self) -> None:
        """What the leader has of a partition is the follower's latest entry but for its cap; nobody complained."""
        assert not self.follower.refused
        if not all(isinstance(hop.decisions[-1], Forward) for hop in self.hops):
            return  # the last fetch did not reach the leader
        for hop in self.hops:
            if hop.link.throttle.settings.rate is not None:  # what began to wait with this answer is told with the next
                waiting_as_came = {one for one in hop.link.partitions.waiting() if one.at_leader is LeaderEntry.AS_CAME}
                assert waiting_as_came <= hop.link.sessions.touched.keys()
        link = self.hops[-1].link
        if link.sessions.leader.epoch == INITIAL_EPOCH:
            return
        row = FETCH_VERSIONS[self.follower.version]
        partitions = self.leader.sessions[link.sessions.leader.id].partitions
        for key, cached in partitions.items():
            asked = self.follower.sent[key]
            assert row.with_no_bytes(cached.entry, len(asked)) == row.with_no_bytes(asked, len(asked))
        noted = [one for one in link.partitions if one.at_leader is not LeaderEntry.ABSENT]
        assert {(one.topic.key, one.partition) for one in noted} == set(partitions)
        as_came = [one for one in noted if one.at_leader is LeaderEntry.AS_CAME]
        assert all(partitions[one.topic.key, one.partition].entry == one.entry for one in as_came)


def cluster(
    *rates: int | None,
    behind: int = PARTITIONS,
    in_sync: int = 1,
    version: int = 12,
    batches: int = 4000,
    slots: int = 1000,
    settings: ThrottleSettings | None = None,
) -> Cluster:
    """`behind` partitions of topic t at offset 0, `in_sync` ones of an unthrottled topic at their end."""
    clock = MovedClock()
    by_id = FETCH_VERSIONS[version].names_topics_by_id
    name, other = (TOPIC_ID, TOPIC_ID[::-1]) if by_id else (b"t", b"idle")
    logs = {(name, p): Log([BATCH] * batches) for p in range(behind)}
    logs |= {(other, p): Log([BATCH] * 10) for p in range(in_sync)}
    leader = SessionLeader(clock, Leader(logs), slots)
    hops: list[Hop] = []
    throttles: list[Throttle] = []
    sides: list[SideName] = ["follower", "leader"] if len(rates) == 2 else ["leader"]
    upstream: Hop | SessionLeader = leader
    for rate, side in zip(reversed(rates), reversed(sides), strict=True):
        throttle = Throttle(side, 1, clock, settings or ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}))
        throttle.topic_names.learn({TOPIC_ID: b"t", TOPIC_ID[::-1]: b"idle"})
        upstream = Hop(clock, throttle.link(2), upstream)
        hops.insert(0, upstream)
        throttles.insert(0, throttle)
    offsets: dict[Key, int] = {key: 10 if key[0] == other else 0 for key in logs}
    return Cluster(clock, throttles, hops, leader, SessionFollower(clock, hops[0], offsets, version))
