# SPDX-License-Identifier: Apache-2.0
"""Records that are taken out of an answer as it passes: what goes out is what a broker without them would have sent."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import VERSIONS, Partition, Topics, batch, feed, pieces, response, single_bytes, with_ids
from tests.protocol.test_response_scanner import MADE_UP, encoded, grown
from weir.protocol import take_out
from weir.protocol.response_scanner import Expected, FetchResponseScanner, RecordsSeen
from weir.protocol.take_out import Admit, Passing

ORDERS: Topics = [
    (b"idle", [Partition(0, 0, 5, b""), Partition(1, 3, -1, None)]),
    (b"orders", [Partition(0, 0, 9, b""), Partition(1, 0, 7, batch(5000)), Partition(2, 0, 9, batch(100) * 2)]),
]


def edited(topics: Topics, verdicts: dict[tuple[int, int], Passing], *, first_alone: bool) -> Topics:
    """The topics as they go out, by (topic's index, partition's index); found the slow way."""
    kept: list[tuple[bytes, list[Partition]]] = []
    is_first = True
    for index, (name, partitions) in enumerate(topics):
        kept.append((name, []))
        for place, one in enumerate(partitions):
            records = one.records
            if records:
                passing = verdicts[index, place]
                if first_alone and (not is_first or passing is Passing.WHOLE_BATCHES):
                    passing = Passing.ALL
                is_first = False
                if passing is Passing.NOTHING:
                    records = b""
                elif passing is Passing.WHOLE_BATCHES:
                    records = records[: fetch_data.seen(one.partition, records).complete_bytes]
            kept[-1][1].append(one._replace(records=records))
    return kept


class Verdicts:
    """Answers as the throttle would, in the order of the records."""

    def __init__(self, topics: Topics, verdicts: dict[tuple[int, int], Passing]) -> None:
        self.queue = [
            (name, one.partition, len(one.records), verdicts[index, place])
            for index, (name, partitions) in enumerate(topics)
            for place, one in enumerate(partitions)
            if one.records
        ]

    def __call__(self, topic: bytes, partition: int, size: int) -> Passing:
        *asked, verdict = self.queue.pop(0)
        assert asked == [topic, partition, size]
        return verdict


@pytest.mark.long
@given(
    st.sampled_from(VERSIONS),
    fetch_data.topics,
    st.sampled_from(([], MADE_UP)),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 2000), max_size=8),
    st.randoms(use_true_random=False),
)
def test_what_goes_out_is_as_from_a_broker_without_the_records(
    version: int,
    topics: Topics,
    appended: Topics,
    walked: bool,
    holds_all: bool,
    cuts: list[int],
    rng: object,
) -> None:
    topics = with_ids(version, topics)
    choose = rng.choice  # type: ignore[attr-defined]
    verdicts = {
        (index, place): choose(list(Passing))
        for index, (_, partitions) in enumerate(topics)
        for place in range(len(partitions))
    }
    frame = response(version, 7, topics)
    expected = grown(version, edited(topics, verdicts, first_alone=not holds_all), appended)
    walk = {name for name, _ in topics} if walked else set[bytes]()
    for chunks in ([frame], single_bytes(frame), pieces(frame, cuts)):
        scanner = FetchResponseScanner(
            version,
            7,
            Expected(
                encoded(version, appended), len(appended), walk, admit=Verdicts(topics, verdicts), holds_all=holds_all
            ),
        )
        assert feed(scanner, chunks) == expected
        assert scanner.done
        passed = sum(seen.size for topic in scanner.topics for seen in topic.records)
        taken = sum(seen.taken_out for topic in scanner.topics for seen in topic.records)
        sent = sum(len(one.records or b"") for _, partitions in topics for one in partitions)
        assert passed + taken == sent
        headers = b"".join(topic.headers for topic in scanner.topics)
        assert headers == b"".join(fetch_data.header(one) for _, partitions in topics for one in partitions)


def nothing(topic: bytes, partition: int, size: int) -> Passing:
    return Passing.NOTHING


def whole(topic: bytes, partition: int, size: int) -> Passing:
    return Passing.WHOLE_BATCHES


def scanner_of(
    version: int, admit: Admit, *, holds_all: bool, may_hold: Callable[[int], bool] = lambda _: True
) -> FetchResponseScanner:
    return FetchResponseScanner(version, 7, Expected(admit=admit, holds_all=holds_all), may_hold)


@pytest.mark.parametrize("version", [3, 12])
def test_an_answer_without_room_passes_as_it_comes_and_its_tails_are_counted(version: int) -> None:
    asked: list[int] = []

    def has_no_room(size: int) -> bool:
        asked.append(size)
        return False

    expected = Expected(walk={b"t"}, admit=whole, holds_all=True)
    scanner = FetchResponseScanner(version, 7, expected, has_no_room)
    frame = response(version, 7, [(b"t", [Partition(0, 0, 9, batch(100) + batch(300)[:60])])])
    early, _ = scanner.receive(memoryview(frame)[:-30])
    assert b"".join(early) == frame[:-30]
    assert not scanner.is_held
    late, _ = scanner.receive(memoryview(frame)[-30:])
    assert b"".join(early) + b"".join(late) == frame
    (seen,) = scanner.topics[0].records
    assert (seen.size, seen.complete_bytes, seen.cut_bytes, seen.taken_out) == (160, 100, 60, 0)
    assert asked == [len(frame) - 4]


def test_what_was_not_granted_is_taken_out_of_an_answer_without_room() -> None:
    """Only the first records can be that: their bytes never were to be held."""
    scanner = scanner_of(3, nothing, holds_all=True, may_hold=lambda _: False)
    frame = response(3, 7, [(b"t", [Partition(0, 0, 9, batch(5000)), Partition(1, 0, 9, b"")])])
    expected = response(3, 7, [(b"t", [Partition(0, 0, 9, b""), Partition(1, 0, 9, b"")])])
    assert feed(scanner, pieces(frame, [60, 1000])) == expected


@pytest.mark.parametrize("version", [3, 7, 12, 18])
def test_of_what_was_taken_out_the_size_of_its_batch_is_known(version: int) -> None:
    scanner = scanner_of(version, nothing, holds_all=False)
    feed(scanner, pieces(response(version, 7, with_ids(version, ORDERS)), [5, 77, 1500]))
    assert scanner.topics[1].records[0] == RecordsSeen(1, 0, next_batch_size=5000, taken_out=5000)
    assert scanner.topics[1].records[1].size == 200


@pytest.mark.parametrize("version", [3, 12])
def test_tail_is_taken_out_and_the_batch_it_begins_is_known(version: int) -> None:
    records = batch(100) + batch(300)[:60]
    scanner = scanner_of(version, whole, holds_all=True)
    topics: Topics = [(b"t", [Partition(0, 0, 9, records)])]
    assert feed(scanner, [response(version, 7, topics)]) == response(
        version, 7, [(b"t", [Partition(0, 0, 9, batch(100))])]
    )
    (seen,) = scanner.topics[0].records
    assert (seen.size, seen.complete_bytes, seen.cut_bytes, seen.taken_out, seen.next_batch_size) == (
        100,
        100,
        0,
        60,
        300,
    )


def test_a_batch_that_is_taken_out_is_not_kept() -> None:
    """However large it is, only what comes before it is held."""
    scanner = scanner_of(3, nothing, holds_all=True)
    frame = response(3, 7, [(b"t", [Partition(0, 0, 9, batch(3 * take_out.MOST_HELD)), Partition(1, 0, 9, b"")])])
    sent = [scanner.receive(memoryview(frame)[at : at + 65_536])[0] for at in range(0, len(frame), 65_536)]
    assert b"".join(b"".join(buffers) for buffers in sent) == response(
        3, 7, [(b"t", [Partition(0, 0, 9, b""), Partition(1, 0, 9, b"")])]
    )
    assert b"".join(sent[0])[-8:] == struct.pack(">q", 9)[-4:] + struct.pack(">i", 0)
    assert not any(sent[1:-1]), "nothing is sent while it passes"


def test_large_answer_is_sent_as_it_comes_after_first_records() -> None:
    """It keeps its tails: so much is not held."""
    scanner = scanner_of(3, whole, holds_all=True)
    records = batch(2 * take_out.MOST_HELD) + batch(300)[:60]
    frame = response(3, 7, [(b"t", [Partition(0, 0, 9, records)])])
    first, _ = scanner.receive(memoryview(frame)[:1000])
    assert b"".join(first) == frame[:1000]
    rest, _ = scanner.receive(memoryview(frame)[1000:])
    assert b"".join(rest) == frame[1000:]
    assert scanner.topics[0].records[0].taken_out == 0


def test_bytes_are_stepped_over_once_nothing_can_be_taken_out() -> None:
    """The fast path of large records is open again."""
    scanner = scanner_of(3, lambda *_: Passing.ALL, holds_all=False)
    frame = response(3, 7, [(b"t", [Partition(0, 0, 9, batch(100_000))])])
    scanner.receive(memoryview(frame)[:1000])
    assert scanner.step_over() > 90_000


def test_bytes_that_are_taken_out_are_not_stepped_over() -> None:
    scanner = scanner_of(3, nothing, holds_all=False)
    frame = response(3, 7, [(b"t", [Partition(0, 0, 9, batch(100_000))])])
    scanner.receive(memoryview(frame)[:1000])
    assert scanner.step_over() == 0
    assert scanner.look(memoryview(frame)[1000:2000]) == -1
