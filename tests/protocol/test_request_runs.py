# SPDX-License-Identifier: Apache-2.0
"""Requests of one follower, one after the other: what came before is not read again, and nothing else changes."""

import random
from collections.abc import Iterator

import pytest

from bench.peers import request_frame, requested
from weir.protocol.errors import MalformedFrame, TooMany
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request, fetch_request_steps
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.request_topics import RequestTopic, Runs
from weir.protocol.steps import at_once


def frame_of(version: int, topics: list[RequestTopic]) -> bytes:
    """A request's frame without its size."""
    return request_frame(fetch_version(version), 1, topics)[4:]


def topic(version: int, name: bytes, partitions: int, offset: int = 0) -> RequestTopic:
    row = fetch_version(version)
    entries = b"".join([requested(row, partition, offset, 1000) for partition in range(partitions)])
    return RequestTopic(name, entries, row.partition_size)


def read(frame: bytes, runs: Runs) -> FetchRequest:
    return at_once(fetch_request_steps(frame, runs))


def drawn_requests(draw: random.Random) -> Iterator[tuple[int, list[RequestTopic]]]:
    """Requests as a follower sends them: topics change, move to the end, come and go; now and then the version does."""
    version, topics = (
        3,
        [topic(3, b"t%d" % number, draw.choice((0, 1, 1, 3))) for number in range(draw.randint(0, 300))],
    )
    for offset in range(1, 25):
        for _ in range(draw.choice((0, 1, 5, 200))):
            if topics and draw.random() < 0.7:
                old = topics.pop(draw.randrange(len(topics)))
                if draw.random() < 0.8:
                    at = draw.choice((len(topics), draw.randint(0, len(topics))))
                    topics.insert(at, topic(version, old.name, draw.choice((0, 1, 3)), offset))
            elif draw.random() < 0.5:
                topics.append(topic(version, draw.choice((b"", b"new%d" % offset, b"t1")), 1, offset))
        if draw.random() < 0.1:
            version = draw.choice((0, 3, 4, 5, 9, 11))
            topics = [topic(version, one.name, draw.choice((0, 1, 3))) for one in topics]
        yield version, topics


@pytest.mark.parametrize("seed", range(40))
def test_runs_change_nothing(seed: int) -> None:
    draw, runs = random.Random(seed), Runs()
    for version, topics in drawn_requests(draw):
        frame = frame_of(version, topics)
        assert read(frame, runs) == decode_fetch_request(frame)
        broken = frame[: draw.randrange(30, len(frame))] if len(frame) > 30 else frame[:10]
        with pytest.raises(MalformedFrame) as with_runs:
            read(broken, runs)
        with pytest.raises(MalformedFrame) as without:
            decode_fetch_request(broken)
        assert str(with_runs.value) == str(without.value)


def test_what_came_before_is_not_read_again() -> None:
    topics = [topic(3, b"topic-%d" % number, 1) for number in range(320)]
    runs = Runs()
    before = read(frame_of(3, topics), runs).topics
    topics.append(topic(3, topics.pop(100).name, 1, 7))
    after = read(frame_of(3, topics), runs).topics
    assert after == topics
    assert sum(new is not old for new, old in zip(after, before[:100] + before[101:], strict=False)) < 32


def test_a_run_is_not_taken_for_more_topics_than_are_announced() -> None:
    topics = [topic(3, b"topic-%d" % number, 1) for number in range(64)]
    runs = Runs()
    frame = frame_of(3, topics)
    read(frame, runs)
    count_at = frame.index(b"\x00\x07topic-0") - 4
    shorter = frame[:count_at] + b"\x00\x00\x00\x05" + frame[count_at + 4 :]
    with pytest.raises(MalformedFrame, match="bytes follow the request's last field") as without:
        decode_fetch_request(shorter)
    with pytest.raises(MalformedFrame) as with_runs:
        read(shorter, runs)
    assert str(with_runs.value) == str(without.value)


def test_runs_of_another_version_are_not_taken() -> None:
    """Topics without partitions are the same bytes in each."""
    runs = Runs()
    for version in (3, 5, 9):
        frame = frame_of(version, [topic(version, b"topic-%d" % number, 0) for number in range(64)])
        assert read(frame, runs) == decode_fetch_request(frame)
        assert len(runs) == 2


def test_partitions_of_runs_count() -> None:
    runs, some = Runs(), [topic(3, b"topic-%d" % number, 1_000) for number in range(64)]
    read(frame_of(3, some), runs)
    with pytest.raises(TooMany):
        read(frame_of(3, [*some, *(topic(3, b"more-%d" % number, 1_000) for number in range(150))]), runs)


def test_long_lists_are_not_kept() -> None:
    runs = Runs()
    read(frame_of(3, [topic(3, b"n" * 200 + b"%d" % number, 1) for number in range(6_000)]), runs)
    assert not runs
    read(frame_of(3, [topic(3, b"%d" % number, 1) for number in range(6_000)]), runs)
    assert 100 < len(runs) < 200


def test_runs_do_not_grow_from_request_to_request() -> None:
    """Else a peer that made one long run would have it compared with all of its next request at each topic."""
    runs, topics = Runs(), list[RequestTopic]()
    for round_ in range(50):
        topics = [topic(3, b"topic-%d-%d" % (round_, number), 1) for number in range(31)] + topics
        assert read(frame_of(3, topics), runs).topics == topics
        assert max([len(run.topics) for run in runs.values()], default=0) <= 64
