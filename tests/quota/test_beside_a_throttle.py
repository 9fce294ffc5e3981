# SPDX-License-Identifier: Apache-2.0
"""What is told of replicas that catch up unthrottled beside a throttle, and of those that a quota holds to a rate."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from weir.quota.scopes import Recovering
from weir.quota.settings import QuotaSettings, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

BATCH = 100_000


def conversation(settings: ThrottleSettings) -> tuple[Throttle, Conversation]:
    """Topics t and u, both with partition 0 behind and partition 1 in sync."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, settings)
    leader = Leader({(topic, partition): Log([BATCH] * 50) for topic in (b"t", b"u") for partition in range(2)})
    follower = Follower({(topic, partition): 50 * partition for topic in (b"t", b"u") for partition in range(2)})
    return throttle, Conversation(clock, throttle.link(2), leader, follower)


@pytest.mark.parametrize(
    ("settings", "is_counted"),
    [
        (ThrottleSettings(rate=BATCH, replicas={"t": ALL_REPLICAS}), True),
        (ThrottleSettings(rate=BATCH, replicas={"t": ALL_REPLICAS, "u": ALL_REPLICAS}), False),
        (ThrottleSettings(rate=BATCH, replicas={"t": ALL_REPLICAS}, is_observed=True), False),
        (ThrottleSettings(), False),
    ],
)
def test_catch_up_of_what_is_unlisted_counts_beside_a_throttle(settings: ThrottleSettings, is_counted: bool) -> None:
    throttle, talk = conversation(settings)
    talk.run(2.0)
    assert (throttle.stats.catch_up_beside_throttle > 0) == is_counted


def test_records_of_replicas_in_sync_are_no_catch_up() -> None:
    throttle, talk = conversation(ThrottleSettings(rate=BATCH, replicas={"t": ALL_REPLICAS}))
    talk.run(5.0)  # u has caught up
    caught_up = throttle.stats.catch_up_beside_throttle
    talk.leader.logs[b"u", 1].append(BATCH)
    talk.run(1.0)
    assert throttle.stats.replication_bytes[2, False] > caught_up
    assert throttle.stats.catch_up_beside_throttle == caught_up


def test_replicas_behind_are_held_to_a_rate_while_they_fetch() -> None:
    throttle, talk = conversation(ThrottleSettings(rate=BATCH, replicas={"t": ALL_REPLICAS}))
    talk.run(2.0)
    assert list(throttle.held_to_a_rate()) == [(b"t", 0, 2)]
    talk.clock.move(31)
    assert list(throttle.held_to_a_rate()) == []
    talk.run(1.0)
    assert list(throttle.held_to_a_rate()) == [(b"t", 0, 2)]
    throttle.configure(ThrottleSettings(rate=None, replicas={"t": ALL_REPLICAS}))
    assert list(throttle.held_to_a_rate()) == []


def test_a_replica_with_two_connections_is_told_once() -> None:
    throttle, talk = conversation(ThrottleSettings(rate=BATCH, replicas={"t": ALL_REPLICAS}))
    talk.run(1.0)
    again = Conversation(talk.clock, throttle.link(2), talk.leader, talk.follower)
    again.run(0.5)
    assert list(throttle.held_to_a_rate()) == [(b"t", 0, 2)]


@pytest.mark.parametrize("observed", [(), (QuotaSettings("recovery", 1_000, Recovering(), is_observed=True),)])
def test_what_is_listed_counts_as_throttled_before_a_rate(observed: tuple[QuotaSettings, ...]) -> None:
    """As in Kafka, and whether another quota observes or not."""
    settings = ThrottleSettings(rate=None, replicas={"t": ALL_REPLICAS, "u": ALL_REPLICAS}, quotas=observed)
    throttle, talk = conversation(settings)
    talk.run(0.05)
    assert set(throttle.stats.replication_bytes) == {(2, True)}
    assert throttle.quotas[0].passed_bytes == throttle.stats.replication_bytes[2, True]
