# SPDX-License-Identifier: Apache-2.0
"""The accounts of a chaos run: what is lost, what came twice, late, damaged or from nowhere is each told apart."""

import struct
from collections.abc import Iterable

import pytest

from tests.chaos.records import Batch, Entry, Records, Verdict, account, batches, pack, unpack, with_producers
from weir.control.cluster_admin import Partition

ONE, OTHER = Partition("orders", 0), Partition("orders", 1)


def verdict(sent: int, acked: Iterable[int], read: Iterable[int]) -> Verdict:
    return account({ONE: sent}, {ONE: set(acked)}, {ONE: [Entry(number, True) for number in read]})


def test_account_of_records_read_as_sent_has_nothing_to_say() -> None:
    found = verdict(4, range(4), range(4))
    assert (found.counts["acked"], found.counts["read"], found.violations(True)) == (4, 4, [])


def test_account_without_an_acked_record_calls_it_lost() -> None:
    found = verdict(4, range(4), [0, 1, 3])
    assert found.counts["lost"] == 1
    assert found.violations(True) == ["1 acked records are lost: orders-0 lost 2 of 4"]


def test_account_is_clean_without_a_record_that_nobody_acked() -> None:
    """Such a record may be there or not."""
    assert verdict(4, [0, 1, 3], [0, 1, 3]).violations(True) == []
    assert verdict(4, [0, 1, 3], range(4)).violations(True) == []


def test_record_that_came_twice_is_wrong_unless_that_is_allowed() -> None:
    found = verdict(3, range(3), [0, 1, 1, 2])
    assert found.counts["twice"] == 1
    assert found.violations(idempotent=True) == ["1 records came twice: orders-0 twice 1 of 3"]
    assert found.violations(idempotent=False) == []


def test_account_of_a_batch_sent_again_has_duplicates_in_order() -> None:
    found = verdict(4, range(4), [0, 1, 2, 1, 2, 3])
    assert (found.counts["twice"], found.counts["late"]) == (2, 0)


def test_record_behind_a_later_one_is_wrong_unless_allowed() -> None:
    found = verdict(3, range(3), [0, 2, 1])
    assert (found.counts["late"], found.counts["twice"], found.counts["lost"]) == (1, 0, 0)
    assert len(found.violations(idempotent=True)) == 1
    assert found.violations(idempotent=False) == []


def test_account_of_damaged_and_unknown_records_names_both() -> None:
    found = account({ONE: 2}, {ONE: {0}}, {ONE: [Entry(0, True), Entry(1, False), Entry(7, True)]})
    assert (found.counts["damaged"], found.counts["unknown"], found.counts["lost"]) == (1, 1, 0)
    assert len(found.violations(True)) == 2


def test_account_keeps_partitions_apart() -> None:
    read = {ONE: [Entry(0, True), Entry(1, True)], OTHER: [Entry(0, True)]}
    found = account({ONE: 2, OTHER: 2}, {ONE: {0, 1}, OTHER: {0, 1}}, read)
    assert (found.counts["acked"], found.counts["read"], found.counts["lost"]) == (4, 3, 1)
    assert found.examples == ["orders-1 lost 1 of 2"]


def test_account_of_a_partition_not_read_at_all_is_a_loss() -> None:
    assert account({ONE: 2}, {ONE: {0, 1}}, {}).counts["lost"] == 2


@pytest.mark.parametrize("size", [20, 1000, 150_000])
def test_record_that_is_read_as_it_was_packed_is_whole(size: int) -> None:
    value = pack(77, size)
    assert len(value) == size
    assert unpack(value) == Entry(77, True)


def test_record_with_a_changed_byte_or_number_is_not_whole() -> None:
    value = pack(77, 1000)
    assert not unpack(value[:500] + bytes([value[500] ^ 1]) + value[501:]).whole
    assert not unpack(pack(78, 1000)[:8] + value[8:]).whole
    assert not unpack(value[:-1]).whole
    assert unpack(b"") == Entry(-1, False)


def test_longest_gap_is_between_two_acknowledgements() -> None:
    records = Records()
    for now in (100.0, 101.0, 105.0, 106.0):
        records.take(ONE, records.next_number(ONE), now)
    assert records.longest_gap == (4.0, 101.0)
    assert (records.count, records.sent, records.acked) == (4, {ONE: 4}, {ONE: {0, 1, 2, 3}})


def test_account_counts_records_sent_again_by_another_producer() -> None:
    """Under another producer id a record sent again is no duplicate: it is counted by itself."""
    read = [Entry(0, True, 0, (7, 0)), Entry(0, True, 1, (8, 0)), Entry(1, True, 2, (8, 0)), Entry(1, True, 3, (8, 0))]
    found = account({ONE: 2}, {ONE: {0, 1}}, {ONE: read})
    assert (found.counts["sent_again"], found.counts["twice"], found.counts["late"]) == (1, 1, 0)
    assert found.examples == ["orders-0 twice 1 of 2"]


def batch(base_offset: int, records: int, producer: int, magic: int = 2) -> bytes:
    body = struct.pack(">ibIhiqqqhii", 3, magic, 0, 0, records - 1, 0, 0, producer, 1, 0, records) + b"records"
    return struct.pack(">qi", base_offset, len(body)) + body


def test_batches_of_a_segment_tell_their_producers() -> None:
    log = batches(batch(0, 3, 7) + batch(3, 1, 8))
    assert log == [Batch(2, (7, 1)), Batch(3, (8, 1))]
    entries = with_producers([Entry(number, True, number) for number in range(4)], log)
    assert [entry.producer for entry in entries] == [(7, 1), (7, 1), (7, 1), (8, 1)]


def test_log_older_than_record_batches_tells_no_producer() -> None:
    log = batches(batch(0, 3, 7, magic=1))
    assert log == []
    assert with_producers([Entry(0, True, 0)], log) == [Entry(0, True, 0)]
