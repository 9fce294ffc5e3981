# SPDX-License-Identifier: Apache-2.0
"""The `kip73` policy in conversations of many seconds: what Kafka's rule lets through when answers are kept small."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000
BATCH = 10_300
PARTITIONS = 20


def conversation(rate: int, seconds: float) -> Conversation:
    clock = MovedClock()
    settings = ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}, policy="kip73")
    throttle = Throttle("leader", 1, clock, settings)
    batches = int(rate * seconds / PARTITIONS / BATCH)
    leader = Leader({(b"t", partition): Log([BATCH] * batches) for partition in range(PARTITIONS)})
    follower = Follower({(b"t", partition): 0 for partition in range(PARTITIONS)})
    return Conversation(clock, throttle.link(2), leader, follower, round_trip=0.01)


@pytest.mark.parametrize("rate", [MB, 5 * MB, 20 * MB])
def test_mean_keeps_to_the_quota(rate: int) -> None:
    """ReplicationQuotasTest asks for 0.5 to 1.1; whole answers of 10 MB would bring 1.8 at 1 MB/s."""
    talk = conversation(rate, 80.0)
    start = talk.clock.now
    talk.run(40.0)
    assert 0.95 <= mean_rate(talk.follower.received, start, start + 40.0) / rate <= 1.1


def test_one_fetch_is_worth_at_most_a_second_of_quota() -> None:
    talk = conversation(MB, 30.0)
    talk.run(10.0)
    assert max(size for _, size in talk.follower.received) <= MB


def test_partitions_without_room_in_one_answer_are_not_granted() -> None:
    """A partition granted more than the answer can hold looks empty, and its next grants shrink to probes."""
    talk = conversation(20 * MB, 40.0)
    talk.run(20.0)
    granted = [size for _, size in talk.follower.received if size > BATCH]
    assert len(granted) > 20
    assert min(granted[1:]) > 9 * MB  # the first one does not know yet how large batches are
