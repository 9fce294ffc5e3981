# SPDX-License-Identifier: Apache-2.0
"""Caps that end where a batch ends."""

from typing import cast

from weir.lag.asked_topic import AskedTopic
from weir.protocol.records import RecordsSeen
from weir.quota.batches import BatchSizes, learn
from weir.quota.fetch.order import bytes_to_go
from weir.quota.fetch.state import ReplicaPartition, ReplicaTopic

ASKED = 1024 * 1024


def seen(*sizes: int, next_size: int = 0) -> RecordsSeen:
    return RecordsSeen(0, sum(sizes), sum(sizes), len(sizes), 0, min(sizes), max(sizes), next_size)


def learned(records: RecordsSeen) -> BatchSizes:
    sizes = BatchSizes()
    learn(records, sizes)
    return sizes


def test_unknown_sizes_ask_for_all_that_is_left() -> None:
    assert BatchSizes().cap_for(50_000, ASKED, BatchSizes()) == (50_000, False)


def test_uneven_batches_fill_the_rest_if_tails_are_taken_out() -> None:
    sizes = learned(seen(1000, 5000, 3000, 2000, next_size=4000))
    assert sizes.cap_for(20_000, ASKED, BatchSizes(), takes_out=True) == (20_000, True)
    assert sizes.cap_for(3_000, ASKED, BatchSizes(), takes_out=True) == (4_000, True)


def test_even_batches_are_asked_for_in_whole_numbers() -> None:
    sizes = learned(seen(1000, 1000, 1000, 1000))
    assert sizes.is_even
    assert sizes.cap_for(3999, ASKED, BatchSizes()) == (3000, True)


def test_even_batch_larger_than_what_is_left_is_one_batch() -> None:
    assert learned(seen(1000, 1000, 1000, 1000)).cap_for(10, ASKED, BatchSizes()) == (1000, True)


def test_other_partitions_sizes_serve_while_nothing_is_known() -> None:
    """They are partitions of the same topic."""
    others = learned(seen(1000, 1000, 1000, 1000))
    assert BatchSizes().cap_for(2500, ASKED, others) == (2000, True)


def test_few_batches_conclude_nothing() -> None:
    assert not learned(seen(1000, 1000, 1000)).is_even


def test_uneven_batches_are_asked_for_singly_and_a_head_more() -> None:
    """The head of the next batch tells its size."""
    sizes = learned(seen(1000, 5000, 3000, 2000, next_size=4000))
    assert not sizes.is_even
    cap, is_sure = sizes.cap_for(20_000, ASKED, BatchSizes())
    assert is_sure
    assert 4000 < cap <= 4000 + 61


def test_many_uneven_batches_fill_what_is_left() -> None:
    assert learned(seen(1000, 500, 700, 900)).cap_for(60_000, ASKED, BatchSizes()) == (60_000, True)


def test_cap_never_exceeds_what_was_asked() -> None:
    for sizes in (learned(seen(1000, 1000, 1000, 1000)), learned(seen(1000, 500, 700, 900)), BatchSizes()):
        for barren in range(40):
            sizes.barren = barren
            assert 0 < sizes.cap_for(10**9, 5000, BatchSizes())[0] <= 5000


def test_barren_grants_widen_the_cap_until_data_comes() -> None:
    sizes = BatchSizes()
    caps = []
    for barren in (1, 2, 3):
        sizes.barren = barren
        caps.append(sizes.cap_for(10**7, 1 << 30, BatchSizes())[0])
    assert caps[0] < caps[1] < caps[2]
    learn(seen(1000), sizes)
    assert sizes.barren == 0


def test_barren_grants_keep_to_the_budget_and_have_to_be_first() -> None:
    """They do not widen the cap beyond the budget."""
    sizes = learned(seen(1000, 500, 700, 900))
    sizes.barren = 1
    assert sizes.cap_for(2000, 1 << 20, BatchSizes()) == (2000, False)
    assert not sizes.has_to_be_first
    sizes.barren = 2
    assert sizes.has_to_be_first


def test_rest_of_a_partition_is_offset_bytes_and_half_a_batch() -> None:
    topic = ReplicaTopic(b"t", b"t", cast(AskedTopic, None), (), ())
    replica = ReplicaPartition(topic, 0, 90, ASKED, high_watermark=100)
    assert bytes_to_go(replica) == float("inf")
    topic.batches.largest, topic.batches.bytes_per_offset = 500, 100.0
    assert bytes_to_go(replica) == 1250
    replica.batches.largest, replica.batches.bytes_per_offset = 50, 10.0
    assert bytes_to_go(replica) == 125


def test_miss_of_the_broker_itself_means_too_small_a_cap() -> None:
    known = BatchSizes()
    learn(seen(*[100] * 5), known)
    known.miss(BatchSizes(), is_last_hop=True)
    assert known.barren == 1


def test_miss_of_known_sizes_is_forgiven_six_times() -> None:
    known, unknown = BatchSizes(), BatchSizes()
    learn(seen(*[100] * 5), known)
    for _ in range(6):
        known.miss(BatchSizes(), is_last_hop=False)
    assert known.cap_for(1000, 5000, BatchSizes()) == (1000, True)
    known.miss(BatchSizes(), is_last_hop=False)
    assert known.cap_for(1050, 5000, BatchSizes()) == (1050, False)
    unknown.miss(BatchSizes(), is_last_hop=False)
    assert unknown.barren == 1
    learn(seen(*[100] * 5), known)
    known.miss(BatchSizes(), is_last_hop=False)
    assert known.cap_for(1000, 5000, BatchSizes()) == (1000, True)
