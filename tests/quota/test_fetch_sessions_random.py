# SPDX-License-Identifier: Apache-2.0
"""Followers, leaders and operators that do anything at any time: both sessions stay what Kafka's rules ask for."""

import random
from collections.abc import Callable

import pytest

from tests.quota.sessions import BATCH, MB, VERSIONS, Cluster, cluster
from weir.quota.settings import ThrottleSettings
from weir.quota.throttled_replicas import ALL_REPLICAS

pytestmark = pytest.mark.long

RUNS = 250
NOT_LEADER_OR_FOLLOWER = 6
RATES: list[tuple[int | None, ...]] = [(MB,), (0,), (5 * MB, MB), (None, MB), (MB, None), (MB, 0), (3 * MB, 3 * MB)]


class RandomRun:
    """One run of a cluster, and all that may happen in it; `choose` decides."""

    def __init__(self, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.cluster: Cluster = cluster(
            *choose.choice(RATES),
            behind=choose.randint(1, 8),
            in_sync=choose.randint(0, 3),
            version=choose.choice(VERSIONS),
            slots=choose.choice([1000, 1000, 1, 0]),
            batches=choose.choice([20, 4000]),
        )
        self.first_offsets = dict(self.cluster.follower.offsets)
        self.events: list[Callable[[], None]] = [
            *[self.fetch] * 12,
            self.evict_sessions,
            self.lose_epochs,
            self.stop_following,
            *[self.follow] * 2,
            self.truncate,
            self.elect_anew,
            self.begin_anew,
            self.pause,
            self.throttle,
            self.fail_or_heal,
            self.produce,
        ]

    def fetch(self) -> None:
        self.cluster.follower.fetch()
        self.cluster.check()

    def evict_sessions(self) -> None:
        self.cluster.leader.sessions.clear()

    def lose_epochs(self) -> None:
        for session in self.cluster.leader.sessions.values():
            session.epoch += 1

    def stop_following(self) -> None:
        self.cluster.follower.offsets.pop(self.choose.choice(list(self.first_offsets)), None)

    def follow(self) -> None:
        key = self.choose.choice(list(self.first_offsets))
        self.cluster.follower.offsets.setdefault(key, self.choose.choice([0, self.first_offsets[key]]))

    def truncate(self) -> None:
        offsets = self.cluster.follower.offsets
        for key in list(offsets)[:1]:
            offsets[key] = max(0, offsets[key] - self.choose.randint(0, 5))

    def elect_anew(self) -> None:
        epochs = self.cluster.follower.leader_epochs
        key = self.choose.choice(list(self.first_offsets))
        epochs[key] = epochs.get(key, 0) + 1

    def begin_anew(self) -> None:
        self.cluster.follower.epoch = 0

    def pause(self) -> None:
        self.cluster.clock.move(self.choose.choice([0.1, 1, 16, 20]))

    def throttle(self) -> None:
        self.choose.choice(self.cluster.throttles).configure(
            ThrottleSettings(
                rate=self.choose.choice([None, 0, MB, 9 * MB]),
                replicas=self.choose.choice([{"t": ALL_REPLICAS}, {}]),
                policy=self.choose.choice(["strict", "kip73"]),
            )
        )

    def fail_or_heal(self) -> None:
        log = self.cluster.leader.leader.logs[self.choose.choice(list(self.first_offsets))]
        log.error_code = self.choose.choice([0, NOT_LEADER_OR_FOLLOWER])

    def produce(self) -> None:
        self.cluster.leader.leader.logs[self.choose.choice(list(self.first_offsets))].append(BATCH)

    def check_counts(self) -> None:
        """What a link counts is what it holds."""
        for hop in self.cluster.hops:
            link = hop.link
            topics = link.partitions.topics.values()
            assert link.partitions.count == sum(len(topic.partitions) for topic in topics)
            assert link.partitions.behind_count == sum(len(topic.behind) for topic in topics)
            assert link.partitions.unknown_count == sum(len(topic.unknown) for topic in topics)
            assert len(link.partitions.absent) == sum(len(topic.absent) for topic in topics)
            assert set(link.partitions.queue) <= {replica for topic in topics for replica in topic.partitions.values()}

    def heal(self) -> None:
        """Nothing is wrong any more and nothing throttled: after a few fetches both sessions hold the same."""
        for log in self.cluster.leader.leader.logs.values():
            log.error_code = 0
        for throttle in self.cluster.throttles:
            throttle.configure(ThrottleSettings())
        for _ in range(5):
            self.fetch()
        session = self.cluster.leader.sessions.get(self.cluster.hops[-1].link.sessions.leader.id)
        if session is not None and self.cluster.follower.offsets:
            assert {key: cached.entry for key, cached in session.partitions.items()} == self.cluster.follower.sent


@pytest.mark.parametrize("first", range(0, RUNS, 50))
def test_sessions_agree_whatever_happens(first: int) -> None:
    for seed in range(first, first + 50):
        run = RandomRun(seed)
        for _ in range(run.choose.randint(5, 50)):
            run.choose.choice(run.events)()
            run.check_counts()
        assert not run.cluster.follower.errors, seed
        run.heal()
