"""What a replica fetch tells: the partitions that its follower asks for, where it is in each, and what went away.

A whole request lists everything that its follower wants. In a fetch session (v7+) an incremental one lists changes
only, and what it costs to take in grows with them, not with the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from protocol.errors import MalformedFrame
from protocol.fetch import NO_LEADER_EPOCH, FetchRequest, fetch_version
from protocol.fetch_session import FIRST_SESSION_VERSION
from protocol.steps import Steps
from quota.replica_state import NEVER, UNKNOWN_OFFSET, ReplicaPartition, ReplicaTopic

if TYPE_CHECKING:
    from quota.replica_link import ReplicaLink

ABSENT_SECONDS = 15.0  # how long a partition that is not asked for is remembered: longer than one hop leaves it out
LAST_VERSION_BEFORE_LEADER_EPOCHS = 4  # of replicas below level 0.11 (KIP-101): they truncate to their high watermark
STEP_PARTITIONS = 100  # taken in in one step: a millisecond, where all of them are new
STEP_TOPICS = 2_000  # that say nothing new
MOST_PARTITIONS = 200_000  # of one follower on one connection; Kafka recommends no more in a whole cluster


class TooManyPartitions(Exception):
    """A follower asks for more partitions than one link keeps. `count` is how many."""

    def __init__(self, count: int) -> None:
        super().__init__(f"one connection asks for {count} partitions, and at most {MOST_PARTITIONS} are kept.")
        self.count = count


def take_whole(link: ReplicaLink, request: FetchRequest, now: float) -> Steps[None]:
    """Take a request in that lists everything, in steps."""
    link.asker.fetched(now)
    link.request_number = number = link.request_number + 1
    row = fetch_version(request.header.api_version)
    count = sum([len(topic.entries) // topic.stride for topic in request.topics])
    if count > MOST_PARTITIONS:
        raise TooManyPartitions(count)
    keeps_entries = request.header.api_version >= FIRST_SESSION_VERSION
    truncates = request.header.api_version <= LAST_VERSION_BEFORE_LEADER_EPOCHS
    in_sync_until = now + link.throttle.lag.replica_lag_time_max if truncates else NEVER
    new = 0  # partitions that were looked at one by one since the last step
    for first in range(0, len(request.topics), STEP_TOPICS):
        if first:
            yield
        for name, entries, stride, tags in request.topics[first : first + STEP_TOPICS]:
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
                    _take_block(link, topic, row.requested(stride).iter_unpack(block), now, in_sync_until)
                new += len(block) // stride
                if new >= STEP_PARTITIONS:
                    new = 0
                    yield
    if count != link.partition_count:
        yield from _set_aside_absent(link, request, now)
        if count != link.partition_count:
            raise MalformedFrame("a partition is named twice in a full fetch", 0)
    link.most_partitions = max(link.most_partitions, count)
    yield from _forget_absent(link, now)


def take_incremental(link: ReplicaLink, request: FetchRequest, now: float) -> Steps[None]:
    """Take a request in that says what changed in its session, in steps."""
    link.asker.fetched(now)
    row = fetch_version(request.header.api_version)
    new = 0  # partitions since the last step
    for name, entries, stride, tags in request.topics:
        if not entries:
            continue
        topic = link.topic(name, row.names_topics_by_id)
        topic.tags = tags or topic.tags
        topic.forget_requests()
        for block in blocks_of(entries, stride):
            _take_entries(link, topic, block, row.changes(block, stride), stride, now)
            new += len(block) // stride
            if link.partition_count > MOST_PARTITIONS:
                raise TooManyPartitions(link.partition_count)
            if new >= STEP_PARTITIONS:
                new = 0
                yield
    for name, partitions, _ in request.forgotten:
        if name in link.topics:
            topic = link.topics[name]
            for partition in topic.partitions.keys() & set(partitions):
                _set_aside(link, topic, partition, now)
                new += 1
                if new >= STEP_PARTITIONS:
                    new = 0
                    yield
    link.most_partitions = max(link.most_partitions, link.partition_count)
    yield from _forget_absent(link, now)


def blocks_of(entries: bytes, stride: int) -> Sequence[bytes]:
    """`entries` in blocks of a step each; most topics are one block."""
    size = STEP_PARTITIONS * stride
    if len(entries) <= size:
        return (entries,)
    return [entries[start : start + size] for start in range(0, len(entries), size)]


def _take_block(
    link: ReplicaLink,
    topic: ReplicaTopic,
    entries: Iterable[tuple[int, int, int]],
    now: float,
    in_sync_until: float,
) -> None:
    """Below v7: only what throttling needs is read of each entry."""
    partitions = topic.partitions
    for partition, fetch_offset, max_bytes in entries:
        replica = partitions.get(partition)
        _check(link, partition, fetch_offset, max_bytes)
        if replica is None:
            replica = _appeared(link, topic, partition, fetch_offset, max_bytes, now, in_sync_until=in_sync_until)
        elif replica.fetch_offset == fetch_offset and replica.max_bytes == max_bytes:
            continue
        else:
            _moved(link, replica, fetch_offset, now, in_sync_until)
            replica.max_bytes = max_bytes
        link.classify(replica)


def _take_entries(
    link: ReplicaLink,
    topic: ReplicaTopic,
    entries: bytes,
    changes: Iterable[tuple[int, int, int, int]],
    stride: int,
    now: float,
) -> None:
    """From v7 on: the entries themselves are kept too, for they may have to be sent again when nothing changed."""
    partitions, touched = topic.partitions, link.sessions.touched
    start = 0
    for partition, leader_epoch, fetch_offset, max_bytes in changes:
        entry = entries[start : start + stride]
        start += stride
        replica = partitions.get(partition)
        if replica is not None and replica.entry == entry:
            continue
        _check(link, partition, fetch_offset, max_bytes)
        if replica is None:
            replica = _appeared(link, topic, partition, fetch_offset, max_bytes, now, leader_epoch)
        else:
            if leader_epoch != replica.leader_epoch:
                # The leader was elected anew: what it said before is of another epoch.
                replica.go_back(fetch_offset)
                topic.forget_responses()
            _moved(link, replica, fetch_offset, now)
            replica.max_bytes = max_bytes
        replica.leader_epoch = leader_epoch
        replica.entry = entry
        touched[replica] = None
        if not max_bytes:
            link.sessions.is_asked_for_offsets = True
        link.classify(replica)


def _check(link: ReplicaLink, partition: int, fetch_offset: int, max_bytes: int) -> None:
    """Refuse what no follower asks for: a negative size would lend budget instead of taking it."""
    if max_bytes < 0 or fetch_offset < 0 or partition < 0:
        reason = f"partition {partition} is asked for from offset {fetch_offset} with {max_bytes} bytes"
        raise MalformedFrame(reason, 0)
    if max_bytes > link.most_max_bytes:
        link.most_max_bytes = max_bytes


def _moved(
    link: ReplicaLink, replica: ReplicaPartition, fetch_offset: int, now: float, in_sync_until: float = NEVER
) -> None:
    topic = replica.topic
    if fetch_offset < replica.fetch_offset:
        replica.go_back(fetch_offset, in_sync_until)
        if not fetch_offset:  # deleted and made anew while its last fetch waited at the leader
            replica.forget_sync()
        topic.forget_responses()
        replica.fetch_offset = fetch_offset
    elif fetch_offset > replica.fetch_offset:
        replica.advance(fetch_offset)
    if replica.high_watermark != UNKNOWN_OFFSET:
        topic.lag.update(replica.partition, fetch_offset, replica.high_watermark, now)
        interval = link.throttle.stats.interval
        if interval is not None and topic.name is not None and fetch_offset >= replica.high_watermark:
            # Its last bytes may have come in an interval before: without a line it would be behind there for good.
            interval.link(link.counted_peer).topics[topic.name].touch(replica.partition)


def _appeared(
    link: ReplicaLink,
    topic: ReplicaTopic,
    partition: int,
    fetch_offset: int,
    max_bytes: int,
    now: float,
    leader_epoch: int = NO_LEADER_EPOCH,
    in_sync_until: float = NEVER,
) -> ReplicaPartition:
    topic.lag.ask(partition, now)
    topic.forget_responses()
    link.partition_count += 1
    replica = topic.absent.pop(partition, None)
    if replica is None:
        replica = topic.partitions[partition] = ReplicaPartition(topic, partition, fetch_offset, max_bytes)
        return replica
    topic.partitions[partition] = replica
    del link.absent[replica]
    if leader_epoch != replica.leader_epoch or fetch_offset < replica.fetch_offset:
        replica.go_back(fetch_offset, in_sync_until)  # what was told may be of another leader epoch
    replica.fetch_offset, replica.max_bytes, replica.arrived = fetch_offset, max_bytes, 0
    if not fetch_offset:
        replica.forget_sync()
    return replica


def _set_aside(link: ReplicaLink, topic: ReplicaTopic, partition: int, now: float) -> None:
    """Take away a partition that is not asked for.

    It is remembered for a while: the follower's own sidecar leaves out what its quota has no room for, and asks for it
    again soon. The high watermark that it was told still tells what it is behind of. Nor does an entry made up of it
    hurt: what a follower has below a high watermark is committed, so applied again it changes nothing; and a follower
    whose log was cut since then comes back from an earlier offset, or in another leader epoch.
    """
    replica = topic.partitions.pop(partition)
    topic.lag.leave(partition, now)
    topic.absent[partition] = replica
    link.absent[replica] = now + ABSENT_SECONDS
    link.partition_count -= 1
    link.place(replica, behind=False, unknown=False)
    topic.forget_requests()
    topic.forget_responses()
    link.sessions.touch(replica)


def _set_aside_absent(link: ReplicaLink, request: FetchRequest, now: float) -> Steps[None]:
    """Take away the partitions that this whole request does not list."""
    present: dict[bytes, set[int]] = {}
    row = fetch_version(request.header.api_version)
    seen = 0  # partitions since the last step
    for name, entries, stride, _ in request.topics:
        ids = present.setdefault(name, set())
        ids.update([entry[0] for entry in row.requested(stride).iter_unpack(entries)])
        seen += len(ids)
        if seen >= STEP_TOPICS:
            seen = 0
            yield
    for name, topic in list(link.topics.items()):
        kept = present.get(name, set())
        gone = [id_ for id_ in topic.partitions if id_ not in kept]
        for start in range(0, len(gone), STEP_PARTITIONS):
            for partition in gone[start : start + STEP_PARTITIONS]:
                _set_aside(link, topic, partition, now)
            yield
        topic.forget_responses()
        seen += 1
        if seen >= STEP_TOPICS:
            seen = 0
            yield


def _forget_absent(link: ReplicaLink, now: float) -> Steps[None]:
    """Drop the partitions that were absent for long, and those that are too many."""
    too_many = len(link.absent) - link.most_partitions
    gone: list[ReplicaPartition] = []
    for replica, until in link.absent.items():  # one walk: a dictionary is slow where its first entries are deleted
        if until > now and len(gone) >= too_many:
            break
        gone.append(replica)
    for number, replica in enumerate(gone):
        if number and not number % STEP_TOPICS:
            yield
        topic = replica.topic
        del link.absent[replica], topic.absent[replica.partition]
        if not topic.partitions and not topic.absent:
            del link.topics[topic.key]
