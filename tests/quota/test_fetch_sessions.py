# SPDX-License-Identifier: Apache-2.0
"""Both fetch sessions of a link: steady state, resets from either side, and what the leader is told."""

import struct

import pytest

from tests.fakes.conversation import Log, mean_rate, worst_second
from tests.fakes.kafka.sessions import Key
from tests.quota.sessions import BATCH, MB, PARTITIONS, TOPIC_ID, VERSIONS, cluster
from weir.quota.fetch.decisions import Answer, Forward
from weir.quota.fetch.intake import TooManyPartitions
from weir.quota.fetch.sessions import LEFT_OUT_MS
from weir.quota.figures import SHARE_SECONDS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttled_replicas import ALL_REPLICAS


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_neither_side_sends_a_full_fetch_in_the_steady_state(version: int) -> None:
    made = cluster(5 * MB, version=version)
    start = made.clock.now
    made.follower.run(20)
    assert (made.follower.full_fetches, made.leader.full_fetches) == (1, 1)
    assert not made.follower.errors
    made.check()
    assert 0.98 <= mean_rate(made.follower.received, start + 2, made.clock.now) / (5 * MB) <= 1.01
    assert worst_second(made.follower.received) <= 1.05 * 5 * MB + BATCH


@pytest.mark.parametrize("rate", [MB, 20 * MB])
def test_the_quota_holds_in_a_session(rate: int) -> None:
    made = cluster(rate, in_sync=0)
    start = made.clock.now
    made.follower.run(15)
    assert 0.97 <= mean_rate(made.follower.received, start + 1, made.clock.now) / rate <= 1.01
    assert worst_second(made.follower.received) <= 1.05 * rate + BATCH
    made.check()


def test_batches_larger_than_what_is_asked_for_keep_the_quota() -> None:
    """The partition that stands first returns its batch whole: so much has to be reserved, not its cap alone."""
    rate, large = 4 * MB, 200_000
    made = cluster(rate, in_sync=0)
    made.follower.max_bytes = 65_536
    for partition in range(0, PARTITIONS, 3):
        made.leader.leader.logs[b"t", partition] = Log([large] * 4000)
    made.follower.run(15)
    assert worst_second(made.follower.received) <= 1.04 * rate + large


@pytest.mark.long
@pytest.mark.parametrize(
    "rates", [(5 * MB, 8 * MB), (8 * MB, 5 * MB), (5 * MB, 5 * MB), (None, 5 * MB), (5 * MB, None)]
)
@pytest.mark.parametrize("version", [7, 13])
def test_two_hops_keep_to_the_lower_quota_without_full_fetches(
    rates: tuple[int | None, int | None], version: int
) -> None:
    made = cluster(*rates, version=version)
    lower = min(rate for rate in rates if rate is not None)
    start = made.clock.now
    made.follower.run(20)
    assert 0.96 <= mean_rate(made.follower.received, start + 2, made.clock.now) / lower <= 1.01
    lent = SHARE_SECONDS if rates[0] == lower else 0.0  # what the follower's side asks for waits at the leader's
    assert worst_second(made.follower.received) <= (1.05 + lent) * lower + BATCH
    assert made.leader.full_fetches == 1
    assert not made.follower.errors
    assert made.follower.fetches / 20 < 30
    assert made.leader.fetches / 20 < 30
    made.check()


def test_what_is_not_throttled_costs_no_more_than_its_changes() -> None:
    made = cluster(None, behind=0, in_sync=50)
    made.follower.fetch()
    made.follower.fetch()
    sent = made.hops[0].decisions[-1]
    assert isinstance(sent, Forward)
    assert not sent.request.topics
    assert sent.request.session_epoch == 1


def test_nothing_passes_at_rate_0() -> None:
    made = cluster(0, in_sync=0)
    made.follower.fetch()
    made.follower.received.clear()
    made.follower.run(30)
    assert not made.follower.received
    assert made.leader.fetches <= 1 + 8
    assert made.follower.fetches / 30 < 3
    assert any(isinstance(one, Answer) for one in made.hops[0].decisions)
    made.check()


@pytest.mark.parametrize("rates", [(0,), (0, None), (None, 0), (5 * MB, 0), (0, 0)])
@pytest.mark.parametrize("in_sync", [0, 1])
@pytest.mark.parametrize("seconds", [2, 12])  # before the first probe after the one that learned, and behind it
def test_an_error_reaches_the_follower_within_11_seconds(
    rates: tuple[int | None, ...], in_sync: int, seconds: int
) -> None:
    made = cluster(*rates, in_sync=in_sync)
    made.follower.run(seconds)
    key = next(key for key in made.follower.offsets if key[1] == 3)
    made.leader.leader.logs[key].error_code = 6
    changed_at = made.clock.now
    while True:
        _, topics = made.follower.fetch()
        if any(b"\x00\x00\x00\x03\x00\x06" in topic.headers for topic in topics):
            break
        assert made.clock.now - changed_at < 11
    made.check()


@pytest.mark.parametrize("rates", [(MB,), (MB, 20 * MB), (20 * MB, MB), (MB, MB)])
def test_an_error_reaches_the_follower_of_a_busy_link_too(rates: tuple[int, ...]) -> None:
    made = cluster(*rates, behind=200)  # one share each takes longer than a follower may go without the truth
    made.follower.run(2)
    last = list(made.hops[0].link.partitions.queue)[-1]
    key = last.topic.key, last.partition
    made.leader.leader.logs[key].error_code = 6
    error = struct.pack(">ih", key[1], 6)
    changed_at = made.clock.now
    while True:
        _, topics = made.follower.fetch()
        if any(error in topic.headers for topic in topics):
            break
        assert made.clock.now - changed_at < 11


@pytest.mark.long
@pytest.mark.parametrize("version", [7, 12, 17])
@pytest.mark.parametrize("rates", [(5 * MB,), (5 * MB, 5 * MB)])
def test_leader_evicting_a_session_does_not_disturb_followers(version: int, rates: tuple[int, ...]) -> None:
    made = cluster(*rates, version=version)
    for _ in range(5):
        made.follower.run(2)
        made.leader.sessions.clear()
    made.follower.run(2)
    assert not made.follower.errors
    assert made.follower.full_fetches == 1
    assert made.leader.full_fetches == 6
    made.check()


def test_leader_without_slots_gets_full_fetches_from_weir() -> None:
    """Its follower sends no full fetch but the first."""
    made = cluster(5 * MB, slots=0)
    start = made.clock.now
    made.follower.run(10)
    assert made.follower.full_fetches == 1
    assert made.leader.full_fetches == made.leader.fetches
    assert 0.96 <= mean_rate(made.follower.received, start + 1, made.clock.now) / (5 * MB) <= 1.01
    assert not made.follower.refused


def test_a_leader_of_which_the_epoch_is_lost_heals() -> None:
    made = cluster(5 * MB)
    made.follower.run(2)
    next(iter(made.leader.sessions.values())).epoch += 5
    made.follower.run(2)
    assert not made.follower.errors
    assert made.leader.full_fetches == 2
    assert len(made.leader.sessions) == 1, "the old one was closed"
    made.check()


def test_a_follower_that_begins_anew_gets_a_full_answer() -> None:
    made = cluster(MB)
    made.follower.run(2)
    for _ in range(3):
        made.follower.epoch = 0
        made.follower.fetch()
        made.check()
    made.follower.run(2)
    assert made.leader.full_fetches == made.follower.full_fetches == 4
    assert len(made.leader.sessions) == 1


@pytest.mark.parametrize(("is_own", "epoch", "error"), [(False, 1, 70), (True, 7, 71)])
def test_session_that_is_not_there_is_refused_as_by_a_broker(is_own: bool, epoch: int, error: int) -> None:
    made = cluster(5 * MB)
    made.follower.run(1)
    made.follower.session_id, made.follower.epoch = made.follower.session_id if is_own else 99, epoch
    made.follower.fetch()
    assert made.follower.errors == [error]
    made.follower.run(2)
    assert made.follower.errors == [error]
    assert made.follower.full_fetches == 2
    made.check()


def test_an_upgrade_to_topic_ids_within_the_connection_heals() -> None:
    made = cluster(5 * MB, version=12)
    made.follower.run(2)
    made.leader.leader.logs |= {(TOPIC_ID, p): made.leader.leader.logs[b"t", p] for p in range(PARTITIONS)}
    made.follower.version = 13
    made.follower.offsets = {
        (TOPIC_ID, key[1]): offset for key, offset in made.follower.offsets.items() if key[0] == b"t"
    }
    made.follower.sent = {}
    made.follower.fetch()
    assert made.follower.errors == [106]
    start = made.clock.now
    made.follower.run(4)
    assert made.follower.errors == [106]
    assert mean_rate(made.follower.received, start, made.clock.now) >= 0.95 * 5 * MB
    assert worst_second(made.follower.received) <= 1.05 * 5 * MB + BATCH
    made.check()


def test_partitions_come_and_go_while_others_wait() -> None:
    made = cluster(MB)
    made.follower.run(1)
    gone = {key: made.follower.offsets.pop(key) for key in [(b"t", 3), (b"t", 4), (b"idle", 0)]}
    made.follower.run(1)
    made.check()
    made.follower.offsets |= gone
    made.follower.run(1)
    made.check()
    made.follower.offsets = {(b"t", 5): 0}
    made.follower.run(20)
    made.check()
    made.follower.offsets |= gone
    made.follower.run(1)
    made.check()
    assert made.follower.full_fetches == 1


def test_a_session_emptied_by_its_follower_is_closed() -> None:
    made = cluster(MB)
    made.follower.run(1)
    wanted, made.follower.offsets = made.follower.offsets, {}
    made.follower.fetch()
    assert made.follower.session_id == 0
    assert not made.leader.sessions
    made.follower.offsets = wanted
    made.follower.run(2)
    assert not made.follower.errors
    made.check()


def test_later_throttle_takes_hold_of_sessions_begun_before() -> None:
    made = cluster(None)
    made.follower.run(0.1)
    made.throttles[0].configure(ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    made.follower.run(1.2)  # until the last second's bytes, which nothing bounded, are out of the window
    made.follower.received.clear()
    start = made.clock.now
    made.follower.run(10)
    assert 0.95 <= mean_rate(made.follower.received, start, made.clock.now) / MB <= 1.02
    assert worst_second(made.follower.received) <= 1.05 * MB + BATCH
    assert made.leader.full_fetches == 1
    made.throttles[0].configure(ThrottleSettings())
    made.follower.run(0.5)
    assert made.leader.full_fetches == 1
    made.check()
    session = next(iter(made.leader.sessions.values()))
    assert {key: cached.entry for key, cached in session.partitions.items()} == made.follower.sent


@pytest.mark.parametrize("rates", [(MB,), (MB, 2 * MB)])
@pytest.mark.parametrize("version", [11, 13])
def test_new_leader_epoch_at_rest_makes_not_each_fetch_a_probe(rates: tuple[int, ...], version: int) -> None:
    """Its high watermark is the same, so the leader's session has nothing to tell of it."""
    made = cluster(*rates, version=version, in_sync=0)
    key: Key = next(iter(made.follower.offsets))
    made.follower.run(2)
    made.follower.offsets[key] = 4000  # its log's end
    made.follower.run(2)
    made.follower.leader_epochs[key] = 1
    before, start = [throttle.stats.offset_probes for throttle in made.throttles], made.clock.now
    made.follower.run(5)
    asked = [throttle.stats.offset_probes - count for throttle, count in zip(made.throttles, before, strict=True)]
    assert max(asked) <= 2
    assert mean_rate(made.follower.received, start, made.clock.now) <= 1.02 * MB
    made.check()


def test_a_new_leader_epoch_makes_the_high_watermark_unknown() -> None:
    made = cluster(0, in_sync=0, behind=2)
    made.follower.run(1)
    made.follower.leader_epochs[b"t", 1] = 7
    made.follower.fetch()
    probe = made.hops[0].decisions[-1]
    assert isinstance(probe, Forward)
    assert probe.request.max_wait_ms == 0
    made.check()


@pytest.mark.parametrize("full", [True, False])
def test_no_more_partitions_are_kept_than_one_link_may(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.quota.fetch.intake.MOST_PARTITIONS", PARTITIONS)
    made = cluster(MB, in_sync=0)
    made.follower.fetch()
    made.follower.offsets[b"t", PARTITIONS] = 0
    made.follower.epoch = 0 if full else made.follower.epoch
    with pytest.raises(TooManyPartitions, match="21 partitions"):
        made.follower.fetch()


def test_full_fetches_and_sessions_are_counted() -> None:
    made = cluster(5 * MB)
    throttle = made.throttles[0]
    made.follower.run(2)
    made.leader.sessions.clear()
    made.follower.run(2)
    assert (throttle.stats.full_fetches_received, throttle.stats.full_fetches_sent) == (1, 2)
    assert throttle.open_sessions == 1
    made.hops[0].link.close()
    assert throttle.open_sessions == 0


def test_only_granted_batches_come_with_a_probe_that_goes_along() -> None:
    settings = ThrottleSettings(rate=5 * MB, replicas={"t": ALL_REPLICAS}, order="round-robin")
    made = cluster(5 * MB, in_sync=0, settings=settings)
    made.follower.run(0.5)
    went_along = 0
    for _ in range(200):
        _, topics = made.follower.fetch()
        granted = {key for key, cap in made.asked.items() if cap}
        came = {(topic.name, seen.partition) for topic in topics for seen in topic.records}
        went_along += len(made.asked) > len(granted) > 0
        assert came <= granted
    assert went_along > 2


@pytest.mark.parametrize("version", [7, 12, 17])
def test_no_answer_mutes_a_follower(version: int) -> None:
    """From v8 on throttle_time_ms > 0 does (KIP-219), and a fetcher before Kafka 4.0 then hangs for 30 s."""
    made = cluster(0, 0, version=version, behind=3, in_sync=1)
    made.leader.slots = 0
    end, times = made.clock.now + 30, set[int]()
    while made.clock.now < end:
        head, _ = made.follower.fetch()
        times.add(head.throttle_time_ms)
        made.clock.move(0.01)
    assert times == {0, LEFT_OUT_MS}
    assert LEFT_OUT_MS < 0
