# SPDX-License-Identifier: Apache-2.0
"""Batches of unlike sizes: a large one behind small ones has to come, whatever was learned from the small ones."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log, mean_rate, worst_second
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize("last", [100_000, 900_000])
def test_partition_with_a_large_last_batch_catches_up(version: int, last: int) -> None:
    """300 live records a second stand in front of it, so no answer of the leader brings more than its cap."""
    clock = MovedClock()
    logs = {(b"t", 0): Log([1_000] * 3_000 + [last]), (b"live", 0): Log([])}
    follower = Follower(dict.fromkeys(logs, 0), version=version)
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=5 * MB, replicas={"t": ALL_REPLICAS}))
    talk = Conversation(clock, throttle.link(2), Leader(logs), follower)
    start, live = clock.now, logs[b"live", 0]
    while follower.offsets[b"t", 0] <= 3_000:
        live.extend([1_000] * (int((clock.now - start) * 300) - live.end))
        talk.exchange()
        assert clock.now - start < 5


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize("sizes", [[400_000], [400_000, 20_000]])
def test_a_few_other_bytes_in_the_window_cost_no_large_batch(version: int, sizes: list[int]) -> None:
    """The window has room for two of 400 KB and more, so a third goes, whatever else counts: else 0.8 is used."""
    clock = MovedClock()
    logs = {(b"t", 0): Log(sizes * 200), (b"t", 1): Log([])}
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    follower = Follower(dict.fromkeys(logs, 0), version=version)
    talk = Conversation(clock, throttle.link(2), Leader(logs), follower)
    start, live = clock.now, logs[b"t", 1]
    while clock.now < start + 20:
        live.extend([1_000] * (int((clock.now - start) * 10) - live.end))
        talk.exchange()
    assert 0.95 <= mean_rate(follower.received, start + 4, start + 20) / MB <= 1.02
    assert worst_second(follower.received) <= 1.04 * MB + 400_000


@pytest.mark.parametrize("size", [1_000_000, 1_040_000])
def test_batches_that_fill_the_window_do_not_go_beyond_it(size: int) -> None:
    """Where whole batches within the window use nearly all of it, no second has one more, however many take turns."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", 0): Log([size] * 200)})
    followers = [Follower({(b"t", 0): 0}, replica_id=replica) for replica in range(2, 7)]
    talks = [Conversation(clock, throttle.link(one.replica_id), leader, one) for one in followers]
    for talk in 6 * talks:
        talk.exchange()
    assert worst_second([part for one in followers for part in one.received]) <= 1.04 * MB
    start = clock.now
    talks[0].run(20.0)
    assert mean_rate(followers[0].received, start + 6, start + 20) >= 0.93 * MB


@pytest.mark.parametrize("version", [1, 3, 6, 12])
@pytest.mark.parametrize("live_a_second", [1, 10, 300])
def test_batches_as_large_as_the_window_come_beside_live_records(version: int, live_a_second: int) -> None:
    """They count, too, so the window is never empty. Credit has to decide: what they take, the batches lose."""
    clock = MovedClock()
    logs = {(b"t", 0): Log([MB] * 200), (b"t", 1): Log([])}
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    follower = Follower(dict.fromkeys(logs, 0), version=version)
    talk = Conversation(clock, throttle.link(2), Leader(logs), follower)
    start, live = clock.now, logs[b"t", 1]
    while clock.now < start + 20:
        live.extend([1_000] * (int((clock.now - start) * live_a_second) - live.end))
        talk.exchange()
    assert 0.9 <= mean_rate(follower.received, start + 4, start + 20) / MB <= 1.1
    asked = 1_048_576 if version < 3 else 0  # there all of it is reserved, which is more than the window
    assert worst_second(follower.received) <= 1.04 * MB + live_a_second * 1_000 + asked


@pytest.mark.long
def test_links_at_once_are_answered_at_once_within_the_quota() -> None:
    """Each has to be asked who is in sync; the batch that the leader returns for it stays on the leader's machine."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", 0): Log([400_000] * 100)})
    talks = [
        Conversation(clock, throttle.link(replica), leader, Follower({(b"t", 0): 0}, replica_id=replica), 0.0)
        for replica in range(2, 102)
    ]
    for talk in talks:
        assert isinstance(talk.exchange(), Forward)
    assert clock.now == MovedClock().now
    assert sum(size for talk in talks for _, size in talk.follower.received) <= MB
    assert all(talk.link.partitions.behind_count for talk in talks), "each knows now that it is behind"


@pytest.mark.parametrize("version", [3, 6])
def test_batch_above_its_grant_is_taken_out_and_its_size_known(version: int) -> None:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    logs = {(b"t", 0): Log([1_000] * 2_000 + [900_000] + [1_000] * 2_000)}
    talk = Conversation(clock, throttle.link(2), Leader(logs), Follower({(b"t", 0): 0}, version=version))
    while talk.follower.offsets[b"t", 0] <= 2_000:
        talk.exchange()
    assert throttle.stats.taken_out_bytes >= 900_000
    assert worst_second(talk.follower.received) <= 1.04 * MB + 900_000
    assert throttle.stats.cut_bytes == 0


@pytest.mark.parametrize("version", [1, 3, 6])
def test_at_a_quota_of_0_nothing_passes_but_true_answers_come(version: int) -> None:
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=0, replicas={"t": ALL_REPLICAS}))
    leader = Leader({(b"t", 0): Log([900_000] * 100), (b"live", 0): Log([1_000] * 5)})
    follower = Follower({(b"t", 0): 0, (b"live", 0): 0}, version=version)
    talk = Conversation(clock, throttle.link(2), leader, follower)
    talk.run(30.0)
    assert (follower.offsets[b"t", 0], follower.offsets[b"live", 0]) == (0, 5)
    assert throttle.stats.offset_probes >= 7


def test_partition_of_unknown_batches_loses_no_turns() -> None:
    """Its first grant asks for one byte, and one batch comes: it had no more than that."""
    clock = MovedClock()
    throttle = Throttle(
        "leader", 1, clock, ThrottleSettings(rate=5_000, order="round-robin", replicas={"t": ALL_REPLICAS})
    )
    logs = {(b"other", 0): Log([1_000] * 1_000), (b"t", 0): Log([1_000] * 500), (b"t", 1): Log([1_000] * 500)}
    follower = Follower(dict.fromkeys(logs, 0))
    Conversation(clock, throttle.link(2), Leader(logs), follower).run(8.0)
    offsets = follower.offsets[b"t", 0], follower.offsets[b"t", 1]
    assert sum(offsets) >= 30
    assert max(offsets) - min(offsets) <= 2


def test_partitions_take_turns_by_the_bytes_that_came() -> None:
    """The first answer tells one batch's size. The others are granted 135 KB each, and bring as much: 900 KB."""
    clock = MovedClock()
    throttle = Throttle(
        "leader", 1, clock, ThrottleSettings(900_000, {"a": ALL_REPLICAS, "b": ALL_REPLICAS}, order="round-robin")
    )
    logs = {key: Log([900_000] * 40) for key in ((b"b", 0), (b"b", 1), (b"a", 0))}
    talk = Conversation(clock, throttle.link(2), Leader(logs), Follower(dict.fromkeys(logs, 0), version=4))
    talk.run(9.5)
    assert max(talk.follower.offsets.values()) - min(talk.follower.offsets.values()) <= 1
