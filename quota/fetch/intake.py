"""What a replica fetch says: which partitions its follower asks for, from which offset each, and which are gone.

A whole request lists every partition that its follower wants, an incremental one (v7+) only those that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_session import FIRST_SESSION_VERSION
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.steps import Steps, StepWork
from weir.quota.fetch.partitions import LinkPartitions
from weir.quota.fetch.state import ReplicaTopic

PARTITIONS_PER_STEP = 60  # in one step: about 2 ms, where all of them are new, each in a new topic
TOPICS_PER_STEP = 2_000  # in one step, where they repeat the request before
_COUNTED_PER_STEP = 3_000  # topics
MOST_PARTITIONS = 200_000  # of one follower on one connection; Kafka recommends no more in a whole cluster


class TooManyPartitions(Exception):
    """A follower asks for more partitions than one link keeps. `count` is how many."""

    def __init__(self, count: int) -> None:
        super().__init__(f"one connection asks for {count} partitions, and at most {MOST_PARTITIONS} are kept.")
        self.count = count


def take_whole(link: LinkPartitions, request: FetchRequest, number: int, now: float) -> Steps[None]:
    """Take in request `number` of a link, which lists every partition. Done in steps."""
    link.asker.fetched(now)
    row = fetch_version(request.header.api_version)
    count = 0
    for first in range(0, len(request.topics), _COUNTED_PER_STEP):
        count += sum(
            [len(topic.entries) // topic.stride for topic in request.topics[first : first + _COUNTED_PER_STEP]]
        )
        if len(request.topics) > _COUNTED_PER_STEP:
            yield
    if count > MOST_PARTITIONS:
        raise TooManyPartitions(count)
    keeps_entries = request.header.api_version >= FIRST_SESSION_VERSION
    new = StepWork(PARTITIONS_PER_STEP)  # partitions looked at one by one
    for first in range(0, len(request.topics), TOPICS_PER_STEP):
        if first:
            yield
        for name, entries, stride, tags in request.topics[first : first + TOPICS_PER_STEP]:
            if not entries:
                continue
            topic = link.topic(name, row.names_topics_by_id)
            topic.tags = tags or topic.tags
            if topic.repeats_request(entries, number):
                continue
            for block in blocks_of(entries, stride):
                if keeps_entries:
                    _take_entries(link, topic, block, row.changes(block, stride), stride, now)
                else:
                    _take_block(link, topic, row.requested(stride).iter_unpack(block), now)
                if new.is_enough(len(block) // stride):
                    yield
    if count != link.count:
        yield from _set_aside_absent(link, request, now)
        if count != link.count:
            raise MalformedFrame("a partition is named twice in a full fetch", 0)
    yield from link.classify_failed()
    link.forget_absent(now)


def take_incremental(link: LinkPartitions, request: FetchRequest, now: float) -> Steps[None]:
    """Take in a request that lists what changed in its session. Done in steps."""
    link.asker.fetched(now)
    row = fetch_version(request.header.api_version)
    work = StepWork(PARTITIONS_PER_STEP)
    for name, entries, stride, tags in request.topics:
        if not entries:
            continue
        topic = link.topic(name, row.names_topics_by_id)
        topic.tags = tags or topic.tags
        topic.forget_requests()
        for part in blocks_of(entries, stride):
            _take_entries(link, topic, part, row.changes(part, stride), stride, now)
            if link.count > MOST_PARTITIONS:
                raise TooManyPartitions(link.count)
            if work.is_enough(1 + len(part) // stride):
                yield
    for name, partitions, _ in request.forgotten:
        if name in link.topics:
            topic = link.topics[name]
            for partition in topic.partitions.keys() & set(partitions):
                link.set_aside(topic, partition, now)
                if work.is_enough(1):
                    yield
    yield from link.classify_failed()
    link.forget_absent(now)


def blocks_of(entries: bytes, stride: int) -> Sequence[bytes]:
    """Cut `entries` into blocks of at most PARTITIONS_PER_STEP entries each; most topics are one block."""
    size = PARTITIONS_PER_STEP * stride
    if len(entries) <= size:
        return (entries,)
    return [entries[start : start + size] for start in range(0, len(entries), size)]


def _take_block(
    link: LinkPartitions,
    topic: ReplicaTopic,
    entries: Iterable[tuple[int, int, int]],
    now: float,
) -> None:
    """Take in entries below v7: only what throttling needs is kept of each."""
    partitions = topic.partitions
    for partition, fetch_offset, max_bytes in entries:
        replica = partitions.get(partition)
        max_bytes = _checked(link, partition, fetch_offset, max_bytes)
        if replica is None:
            replica = link.appear(topic, partition, fetch_offset, max_bytes, now)
        elif replica.fetch_offset == fetch_offset and replica.max_bytes == max_bytes:
            continue
        else:
            link.move(replica, fetch_offset, now)
            replica.max_bytes = max_bytes
        link.classify(replica)


def _take_entries(
    link: LinkPartitions,
    topic: ReplicaTopic,
    entries: bytes,
    changes: Iterable[tuple[int, int, int, int]],
    stride: int,
    now: float,
) -> None:
    """Take in entries of v7 and later, and keep each: the leader may need one that its follower did not repeat."""
    partitions, touched = topic.partitions, link.sessions.touched
    start = 0
    for partition, leader_epoch, fetch_offset, max_bytes in changes:
        entry = entries[start : start + stride]
        start += stride
        replica = partitions.get(partition)
        if replica is not None and replica.entry == entry:
            continue
        max_bytes = _checked(link, partition, fetch_offset, max_bytes)
        if replica is None:
            replica = link.appear(topic, partition, fetch_offset, max_bytes, now, leader_epoch)
        else:
            if leader_epoch != replica.leader_epoch:
                # A new leader epoch: the high watermark that was told belongs to the one before.
                link.go_back(replica, fetch_offset)
                topic.forget_responses()
            link.move(replica, fetch_offset, now)
            replica.max_bytes = max_bytes
        replica.leader_epoch = leader_epoch
        replica.entry = entry
        touched[replica] = None
        if not max_bytes:
            link.sessions.is_asked_for_offsets = True
        link.classify(replica)


def _checked(link: LinkPartitions, partition: int, fetch_offset: int, max_bytes: int) -> int:
    """Return the bytes to ask for. At a leader without a sidecar 0 bytes bring a batch, as 1 byte does.

    Refuses values that no follower sends: a negative size would lend bytes to the budget.
    """
    if max_bytes < 0 or fetch_offset < 0 or partition < 0:
        reason = f"partition {partition} is asked for from offset {fetch_offset} with {max_bytes} bytes"
        raise MalformedFrame(reason, 0)
    if not max_bytes:
        if not link.side.takes_out:
            return 1
        link.is_asked_for_none = True
    return max_bytes


def _set_aside_absent(link: LinkPartitions, request: FetchRequest, now: float) -> Steps[None]:
    """Set aside the partitions that this whole request does not list."""
    present: dict[bytes, set[int]] = {}
    row = fetch_version(request.header.api_version)
    work = StepWork(TOPICS_PER_STEP)  # nothing is changed yet, so steps may be as long as for topics
    for name, entries, stride, _ in request.topics:
        if work.is_enough(1 + len(entries) // stride):
            yield
        ids = present.setdefault(name, set())
        ids.update([entry[0] for entry in row.requested(stride).iter_unpack(entries)])
    work = StepWork(PARTITIONS_PER_STEP)
    for name, topic in list(link.topics.items()):
        kept = present.get(name, set())
        gone = [id_ for id_ in topic.partitions if id_ not in kept]
        for partition in gone:
            link.set_aside(topic, partition, now)
        topic.forget_responses()
        if work.is_enough(1 + len(gone)):
            yield
