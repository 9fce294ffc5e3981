# SPDX-License-Identifier: Apache-2.0
"""Frames of every kind that is read, what a hostile peer makes of them, and how much work reading takes.

Work is counted in lines of code that run: it is the same on every machine.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple
from uuid import UUID

from tests.protocol import test_metadata as metadata
from tests.protocol.fetch_data import CURRENT_LEADER, DIVERGING, VERSIONS, Partition
from tests.protocol.fetch_data import response as fetch_response
from tests.protocol.fetch_requests import DIRECTORY_ID, HIGH_WATERMARK, Asked, encode
from tests.protocol.test_batch_counter import GZIP, NONE, built
from tests.protocol.test_record_counts import share_fetched
from tests.protocol.wire import frame, request, varint
from tests.proxy.limited import produce, produced
from weir.protocol.errors import ProtocolError
from weir.protocol.fetch_request import (
    FetchRequest,
    ForgottenTopic,
    encoding_steps,
    fetch_request_steps,
    replica_id_steps,
    replica_state_tags,
)
from weir.protocol.frame_reader import FrameReader
from weir.protocol.header import FETCH, PRODUCE, SASL_AUTHENTICATE, SHARE_FETCH, RequestHeader
from weir.protocol.metadata import decode_api_versions, decode_cluster
from weir.protocol.produce_response import with_throttle_time
from weir.protocol.record_counts import counts_of
from weir.protocol.request_head import read_request_head
from weir.protocol.request_sender import RequestSender
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import Expected, FetchResponseScanner
from weir.protocol.sasl_answer import SaslAnswer

NUMBER: Final = 7
"""The correlation id of all of them."""

PIECE: Final = 2**14
"""Bytes of a usual read."""

Reading = Generator[object, None, None]
Reader = Callable[[bytes], Reading]
"""Reads a frame with its size, and ends a step with each `yield`. Raises ProtocolError."""

_TOPIC: Final = UUID(int=5)
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class Sample(NamedTuple):
    """A frame, with its size. `readers` are all that read such a one."""

    name: str
    api_key: int
    version: int
    is_request: bool
    data: bytes
    readers: tuple[Reader, ...] = ()


def pieces_of(data: bytes) -> Iterator[memoryview]:
    """`data` as it is read from a socket."""
    for at in range(0, len(data), PIECE):
        yield memoryview(data)[at : at + PIECE]


# Readers


def decoded(data: bytes) -> Reading:
    """As a whole Fetch request, which is then written."""
    request = yield from fetch_request_steps(data[4:])
    yield None
    yield from encoding_steps(request)


def sender_of(data: bytes) -> Reading:
    """As a whole Fetch request, up to who sent it."""
    yield from replica_id_steps(data[4:])


def streamed(data: bytes) -> Reading:
    """As a connection reads requests."""
    stream = RequestStream()
    for piece in pieces_of(data):
        for _ in stream.receive(piece):
            yield None
        yield None


def _looked_at(data: bytes) -> Reading:
    head = read_request_head(data)
    if not isinstance(head, int):
        sender = RequestSender(head.api_key, head.api_version, data[: 2**14])
        _ = sender.client_id, sender.session, sender.wait_seconds, sender.is_transactional, sender.is_whole
        sender.asking_for_no_records()
    yield None


def _scanned(version: int, expected: Expected) -> Reader:
    def read(data: bytes) -> Reading:
        scanner = FetchResponseScanner(version, NUMBER, expected)
        for piece in pieces_of(data):
            scanner.receive(piece)
            yield None

    return read


def _watched(new: Callable[[], FrameReader]) -> Reader:
    def read(data: bytes) -> Reading:
        watcher = new()
        watcher.left = max(4, 4 + _INT32.unpack_from(data)[0])
        for piece in pieces_of(data):
            watcher.see(piece)
            yield None

    return read


def _counted(api_key: int, version: int) -> Reader:
    def new() -> FrameReader:
        counts = counts_of(api_key, version)
        assert counts is not None
        return counts

    return _watched(new)


def _told_to_wait(version: int) -> Reader:
    def read(data: bytes) -> Reading:
        yield with_throttle_time(data, version, 2**31 - 1)

    return read


def _cluster(version: int) -> Reader:
    def read(data: bytes) -> Reading:
        yield from decode_cluster(data[4:], version, NUMBER, (b"orders",))[1]

    return read


def _versions(data: bytes) -> Reading:
    yield decode_api_versions(data[4:], NUMBER)


def _nothing(_: object) -> None:
    pass


# Samples


def fetch_frame(
    version: int,
    topics: Iterable[tuple[bytes, list[Asked], tuple[tuple[int, bytes], ...]]],
    forgotten: tuple[ForgottenTopic, ...] = (),
    replica_id: int = 2,
    session: tuple[int, int] = (5, 3),
) -> bytes:
    """A Fetch request, a replica's or a consumer's."""
    tags = replica_state_tags(replica_id, 1) if version >= 15 and replica_id >= 0 else b""
    header = RequestHeader(FETCH, version, NUMBER, b"c")
    gone = forgotten if version >= 7 else ()
    request = FetchRequest(header, replica_id, 500, 1, 2**20, [], 0, *session, gone, b"", tags)
    return encode(request, list(topics))


def named(version: int, number: int = 0) -> bytes:
    """A topic's name, or its id in versions with ids."""
    return b"%016d" % number if version >= 13 else b"t%d" % number


def asked(version: int, number: int = 0) -> Asked:
    """A requested partition; from v12 on two of three have tags, of different sizes."""
    tags = ((), (DIRECTORY_ID,), (DIRECTORY_ID, HIGH_WATERMARK))[number % 3] if version >= 12 else ()
    return Asked(number, 1, 3, 1, 0, 1000, tags)


LISTS: Final = (
    *("topics", "partitions of one topic", "partitions of a few topics"),
    *("forgotten topics", "partitions of a forgotten topic"),
)


def large_fetch(version: int, what: str, many: int) -> bytes:
    """A replica's Fetch with so many of one of LISTS."""
    few = [asked(version, number) for number in range(many)]
    topics = list[tuple[bytes, list[Asked], tuple[tuple[int, bytes], ...]]]()
    forgotten: tuple[ForgottenTopic, ...] = ()
    match what:
        case "topics":
            topics = [(named(version, number), few[:1], ()) for number in range(many)]
        case "partitions of one topic":
            topics = [(named(version), few, ())]
        case "partitions of a few topics":
            topics = [(named(version, number), few[number :: many // 20], ()) for number in range(many // 20)]
        case "forgotten topics":
            forgotten = tuple(ForgottenTopic(named(version, number), (number,)) for number in range(many))
        case _:
            forgotten = (ForgottenTopic(named(version), tuple(range(many))),)
    return fetch_frame(version, topics, forgotten)


def _fetches() -> Iterator[Sample]:
    for version in VERSIONS:
        topics = [(named(version, n), [asked(version, p) for p in range(3)], ()) for n in range(2)]
        forgotten = tuple(ForgottenTopic(named(version, n), (1, 2)) for n in range(2, 4))
        readers = (decoded, *((sender_of,) if version >= 15 else ()), streamed, _looked_at)
        for who, replica_id in (("replica's", 2), ("consumer's", -1)):
            data = fetch_frame(version, topics, forgotten, replica_id)
            yield Sample(f"{who} fetch v{version}", FETCH, version, True, data, readers)
        yield Sample(f"full fetch v{version}", FETCH, version, True, fetch_frame(version, topics, session=(0, 0)))


def _answers() -> Iterator[Sample]:
    records = built(2, NONE, [5, 5])
    for version in VERSIONS:
        partitions = [Partition(0, 0, 7, None), Partition(1, 0, 7, b"", 2, (DIVERGING, CURRENT_LEADER))]
        partitions.append(Partition(2, 0, 7, records, 1))
        data = fetch_response(version, NUMBER, [(named(version), partitions), (named(version, 1), partitions)])
        expected = Expected(walk={named(version)}), Expected(most_partitions=10, most_topics=4)
        readers = (*(_scanned(version, one) for one in expected), _counted(FETCH, version))
        yield Sample(f"answer to fetch v{version}", FETCH, version, False, data, readers)


def _others() -> Iterator[Sample]:
    for version in range(14):
        if version < 3:
            messages = built(version and 1, GZIP, [5, 5])
            rest = _INT16.pack(1) + struct.pack(">iih", 1000, 1, 1) + b"a" + struct.pack(">iii", 1, 0, len(messages))
            data = request(PRODUCE, version, NUMBER, rest + messages)
        else:
            data = produce(NUMBER, 3, version, transactional="t")
        yield Sample(
            f"produce v{version}", PRODUCE, version, True, data, (_counted(PRODUCE, version), streamed, _looked_at)
        )
        if version >= 5:
            answer = produced(NUMBER, version, 2, error_message="why")
            yield Sample(f"answer to produce v{version}", PRODUCE, version, False, answer, (_told_to_wait(version),))
    for version in (1, 2):
        data = share_fetched(NUMBER, [(0, 9), (30, 34)], built(2, NONE, [50] * 4), _TOPIC)
        readers = (_counted(SHARE_FETCH, version),)
        yield Sample(f"answer to share fetch v{version}", SHARE_FETCH, version, False, data, readers)
        group = b"\x00" + varint(2) + b"g" + varint(2) + b"m" + struct.pack(">iiiiii", 1, 500, 1, 1000, 10, 10)
        data = request(SHARE_FETCH, version, NUMBER, group + bytes(2) + b"\x01\x01\x00")
        yield Sample(f"share fetch v{version}", SHARE_FETCH, version, True, data, (streamed, _looked_at))
        lifetime = _INT32.pack(NUMBER) + (
            bytes(3) + b"\x00\x01" + struct.pack(">q", 9000) + b"\x00"
            if version == 2
            else bytes(2) + b"\xff\xff" + bytes(4) + struct.pack(">q", 9000)
        )
        readers = (_watched(partial(SaslAnswer, version, _nothing)),)
        yield Sample(
            f"answer to SASL authenticate v{version}", SASL_AUTHENTICATE, version, False, frame(lifetime), readers
        )
    for version in (1, 3, 5, 10, 12):
        nodes = {"replica_nodes": [1, 2], "isr_nodes": [1], "offline_replicas": []}
        partitions = [
            metadata.Partition(error_code=0, partition_index=p, leader_id=1, leader_epoch=1, **nodes) for p in range(2)
        ]
        brokers = [metadata.Broker(node_id=1, host="h", port=9092, rack=None)]
        found: list[tuple[int, str | None, bytes, list[object]]]
        found = [(0, name, _TOPIC.bytes, [*partitions]) for name in ("orders", "other")]
        data = frame(metadata.response(version, found, brokers))
        yield Sample(f"metadata v{version}", 3, version, False, data, (_cluster(version),))
    apis = struct.pack(">ihi", NUMBER, 0, 2) + struct.pack(">hhhhhh", 0, 0, 9, 1, 0, 17)
    yield Sample("API versions", 18, 0, False, frame(apis), (_versions,))


SAMPLES: Final = tuple((*_fetches(), *_answers(), *_others()))


# What a peer makes of them

COUNTS: Final = tuple(
    map(
        bytes.fromhex,
        # 2^31 - 1 as a varint and as an int32, the longest varint, and one that does not end
        ("ffffffff07", "7fffffff", "ffffffff0f", "ffffffffffffffffff01"),
    )
)
"""Counts and sizes that no frame can have."""


def blown_up(data: bytes, at: int, count: bytes, filler: bytes, size: int) -> bytes:
    """`data` with a count in the place of what stands at `at`; what follows is `filler`, again and again."""
    start = data[:at] + count
    body = start + (filler * (size // len(filler) + 1))[: max(0, size - len(start))]
    return _INT32.pack(len(body) - 4) + body[4:]


def mutated(draw: random.Random, data: bytes) -> bytes:
    """`data` after a few changes, most of which keep the frame's size true."""
    for _ in range(draw.randint(1, 3)):
        at, stop = sorted(draw.choices(range(4, max(5, len(data))), k=2))
        match draw.choice(("flip", "count", "fill", "fill", "cut", "repeat", "tail", "swap")):
            case "flip":
                data = data[:at] + bytes((data[at] ^ 1 << draw.randrange(8),)) + data[at + 1 :] if data[at:] else data
            case "count":
                count = draw.choice((*COUNTS, _INT32.pack(draw.getrandbits(32) - 2**31), varint(draw.getrandbits(17))))
                data = data[:at] + count + data[at + draw.choice((0, 1, len(count))) :]
            case "fill":
                filler = draw.choice((b"\x00", b"\x01", b"\x02", data[at : at + 40] or b"\x00"))
                data = blown_up(data, at, draw.choice((*COUNTS, b"")), filler, draw.choice((200, 300_000)))
            case "cut":
                data = data[:at] + data[stop:]
            case "repeat":
                data = data[:stop] + data[at:stop] * draw.choice((1, 2, 300)) + data[stop:]
            case "tail":
                data = data[:at] + draw.randbytes(draw.choice((1, 30, 3_000)))
            case "swap":
                data = data[:at] + data[stop:] + data[at:stop]
        data = data[: 2**19]
    if draw.random() < 0.9:
        return _INT32.pack(max(0, len(data) - 4)) + data[4:]
    return data


# What it costs


class Work:
    """Lines of these rooms that run in steps."""

    def __init__(self, *rooms: str) -> None:
        self._rooms = tuple(f"/{room}/" for room in rooms or ("protocol",))
        self.total = self.longest = self._step = 0

    def run(self, steps: Iterator[object]) -> Work:
        """Run all steps, or those before a ProtocolError."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            for _ in steps:
                self._ends()
        except ProtocolError:
            pass
        finally:
            sys.settrace(before)
        self._ends()
        return self

    def _ends(self) -> None:
        self.total += self._step
        self.longest = max(self.longest, self._step)
        self._step = 0

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        is_ours = "/tests/" not in name and any(room in name for room in self._rooms)
        return self._line if is_ours else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._step += event == "line"
        return self._line
