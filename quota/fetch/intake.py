# SPDX-License-Identifier: Apache-2.0
"""What a replica fetch says: which partitions its follower asks for, from which offset each, and which are gone.

A whole request lists every partition that its follower wants, an incremental one (v7+) only those that changed.
"""

from __future__ import annotations

from itertools import islice

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_session import FIRST_SESSION_VERSION
from weir.protocol.fetch_versions import FetchVersion
from weir.protocol.request_topics import count_partitions
from weir.protocol.steps import PER_STEP, Steps, StepWork
from weir.quota.fetch.partitions import LinkPartitions
from weir.quota.fetch.state import UNKNOWN_OFFSET, ReplicaPartition, ReplicaTopic
from weir.quota.figures import ABSENT_SECONDS, MOST_PARTITIONS, PARTITIONS_PER_STEP


class TooManyPartitions(Exception):
    """A follower asks for more partitions than one link keeps. `count` is how many."""

    def __init__(self, count: int) -> None:
        super().__init__(f"one connection asks for {count} partitions, and at most {MOST_PARTITIONS} are kept.")
        self.count = count


def take_whole(link: LinkPartitions, request: FetchRequest, now: float) -> Steps[None]:
    """Take in a request that lists every partition. Done in steps."""
    count = 0
    for first in range(0, len(request.topics), PER_STEP):
        count += count_partitions(request.topics[first : first + PER_STEP], link.sessions.row)
        if len(request.topics) > PER_STEP:
            yield
    if count > MOST_PARTITIONS:
        raise TooManyPartitions(count)
    yield from _take_topics(link, request, now, is_whole=True)
    if count != link.count:
        yield from _set_aside_absent(link, request, now)
        if count != link.count:
            raise MalformedFrame("a partition is named twice in a full fetch", 0)
    yield from _forget_absent(link, now)


def take_incremental(link: LinkPartitions, request: FetchRequest, now: float) -> Steps[None]:
    """Take in a request that lists what changed in its session. Done in steps."""
    yield from _take_topics(link, request, now, is_whole=False)
    work = StepWork(PARTITIONS_PER_STEP)
    for name, partitions, _ in request.forgotten:
        topic = link.topics.get(name)
        for start in range(0, len(partitions), PARTITIONS_PER_STEP):
            some = partitions[start : start + PARTITIONS_PER_STEP]
            if work.is_enough(len(some)):
                yield
            if topic is not None:
                for partition in topic.partitions.keys() & set(some):
                    _set_aside(link, topic, partition, now)
    yield from _forget_absent(link, now)


def _take_topics(link: LinkPartitions, request: FetchRequest, now: float, *, is_whole: bool) -> Steps[None]:
    """Take in what a request lists. What a whole one lists exactly as the one before is not looked into."""
    link.asker.fetched(now)
    row, done = link.sessions.row, 0  # partitions looked at one by one in this step
    earlier, link.asked = link.asked, set()
    for first in range(0, len(request.topics), PER_STEP):
        if first:
            yield
        some = request.topics[first : first + PER_STEP]
        if is_whole:
            link.asked.update(some)
            some = [one for one in some if one not in earlier]
        for name, entries, stride, tags in some:
            if not entries:
                continue
            if (topic := link.topics.get(name)) is None:
                topic = link.topics[name] = link.new_topic(name)
                done += link.side.rules.work
            topic.tags = tags or topic.tags
            size = PARTITIONS_PER_STEP * stride  # most topics are one block
            for start in range(0, len(entries), size):
                _take_block(link, topic, entries[start : start + size], row, stride, now)
                if not is_whole and link.count > MOST_PARTITIONS:
                    raise TooManyPartitions(link.count)
                done += min(PARTITIONS_PER_STEP, (len(entries) - start) // stride)
                if done >= PARTITIONS_PER_STEP:
                    done = 0
                    yield


def _take_block(
    link: LinkPartitions, topic: ReplicaTopic, entries: bytes, row: FetchVersion, stride: int, now: float
) -> None:
    """Take in entries of one topic. From v7 on each is kept: the leader may need one that its follower did not repeat.

    Below v7 only what throttling needs is kept.
    """
    partitions, sessions = topic.partitions, link.sessions
    keeps_entries, epoch = row.api_version >= FIRST_SESSION_VERSION, slice(4, 4 + row.leader_epoch_size)
    start, entry = 0, b""
    for partition, fetch_offset, max_bytes in row.requested(stride).iter_unpack(entries):
        replica = partitions.get(partition)
        if keeps_entries:
            entry = entries[start : start + stride]
            start += stride
            if replica is not None and replica.entry == entry:
                continue
        if max_bytes <= 0 or fetch_offset < 0 or partition < 0:
            max_bytes = _checked(link, partition, fetch_offset, max_bytes)
        if replica is None:
            replica = _appear(link, topic, partition, fetch_offset, max_bytes, entry[epoch], now)
        elif not keeps_entries and (replica.fetch_offset, replica.max_bytes) == (fetch_offset, max_bytes):
            continue
        else:
            if replica.entry[epoch] != entry[epoch]:
                # A new leader epoch: the high watermark that was told belongs to the one before.
                _go_back(link, replica, fetch_offset)
            _move(link, replica, fetch_offset, now)
            replica.max_bytes = max_bytes
        if keeps_entries:
            replica.entry = entry
            sessions.touched[replica] = None
            sessions.is_asked_for_offsets |= not max_bytes
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


def _appear(
    link: LinkPartitions,
    topic: ReplicaTopic,
    partition: int,
    fetch_offset: int,
    max_bytes: int,
    leader_epoch: bytes,
    now: float,
) -> ReplicaPartition:
    """Add a partition that was not asked for before. One set aside lately keeps what was known of it."""
    caught_up = topic.lag.ask(partition, now)
    link.count += 1
    replica = topic.absent.pop(partition, None)
    if replica is None:
        rules = link.side.rules
        if rules.has_reassigned and rules.appears(topic.key, partition, link.ends.follower, now):
            link.cover(topic)
        replica = topic.partitions[partition] = ReplicaPartition(topic, partition, fetch_offset, max_bytes)
        link.told.clear()
        if not link.side.takes_out:  # where the probe of each new connection would bring a batch
            replica.highest = topic.lag.told(partition, fetch_offset)
        if caught_up is not None and fetch_offset >= caught_up.offset:
            replica.keep_in_sync(caught_up.offset, caught_up.at + link.side.lag.replica_lag_time_max)
        return replica
    topic.partitions[partition] = replica
    del link.absent[replica]
    replica.batches.arrived = 0
    if leader_epoch != link.sessions.row.leader_epoch(replica.entry):
        # the high watermark that was told may belong to an earlier leader epoch
        _go_back(link, replica, fetch_offset)
    if not fetch_offset:
        replica.forget_sync()
    _move(link, replica, fetch_offset, now)
    replica.max_bytes = max_bytes
    return replica


def _go_back(link: LinkPartitions, replica: ReplicaPartition, fetch_offset: int) -> None:
    """Drop the high watermark of a partition that is asked for from an earlier offset or by another epoch."""
    link.told.clear()
    replica.go_back(fetch_offset, link.in_sync_until, truncates=link.sessions.row.truncates)


def _move(link: LinkPartitions, replica: ReplicaPartition, fetch_offset: int, now: float) -> None:
    """Take the offset from which the follower asks for a partition now; it may be the same as before."""
    topic, batches = replica.topic, replica.batches
    if fetch_offset < replica.fetch_offset:
        _go_back(link, replica, fetch_offset)
        if not fetch_offset:  # deleted and made anew while its last fetch waited at the leader
            replica.forget_sync()
    elif fetch_offset > replica.fetch_offset and batches.arrived:
        per_offset = batches.arrived / (fetch_offset - replica.fetch_offset)
        batches.bytes_per_offset = topic.batches.bytes_per_offset = per_offset
        batches.arrived = 0
    replica.fetch_offset = fetch_offset
    if replica.high_watermark != UNKNOWN_OFFSET:
        topic.lag.update(replica.partition, fetch_offset, replica.high_watermark, now)
        interval = link.side.stats.interval
        if interval is not None and topic.name is not None and fetch_offset >= replica.high_watermark:
            # The last bytes may have come in the interval before. Without a line in this one the samples would show
            # the partition behind for good.
            interval.link(link.counted_peer).topics[topic.name].touch(replica.partition)


def _set_aside(link: LinkPartitions, topic: ReplicaTopic, partition: int, now: float) -> None:
    """Take away a partition that the follower does not ask for now, and remember it for a while.

    The follower's own sidecar leaves out what its quota has no room for, and asks for it again soon: it is then known
    to be behind without an offset probe. One whose log was cut meanwhile comes back with an earlier offset or another
    leader epoch, and then the high watermark is dropped.
    """
    replica = topic.partitions.pop(partition)
    topic.lag.leave(partition, now)
    topic.absent[partition] = replica
    link.absent[replica] = now + ABSENT_SECONDS
    link.count -= 1
    link.place(replica, behind=False, unknown=False)
    link.sessions.touch(replica)


def _forget_absent(link: LinkPartitions, now: float) -> Steps[None]:
    """Drop partitions that were absent for too long, and the oldest of those beyond MOST_PARTITIONS."""
    is_done = False
    while not is_done:
        too_many = link.count + len(link.absent) - MOST_PARTITIONS
        gone: list[ReplicaPartition] = []
        # many in one walk: deleting the first entry of a dictionary again and again is slow
        for replica, until in islice(link.absent.items(), PER_STEP):
            if until > now and len(gone) >= too_many:
                break
            gone.append(replica)
        for replica in gone:
            topic = replica.topic
            del link.absent[replica], topic.absent[replica.partition]
            link.queue.leave(replica, returns=False)
            if not topic.partitions and not topic.absent:
                del link.topics[topic.key]
        is_done = len(gone) < PER_STEP
        if not is_done:
            yield


def _set_aside_absent(link: LinkPartitions, request: FetchRequest, now: float) -> Steps[None]:
    """Set aside the partitions that this whole request does not list."""
    present: dict[bytes, set[int]] = {}
    row = link.sessions.row
    work = StepWork(PER_STEP)  # nothing is changed yet, so steps may be as long as for topics
    for name, entries, stride, _ in request.topics:
        if work.is_enough(1 + len(entries) // stride):
            yield
        present.setdefault(name, set()).update([entry[0] for entry in row.requested(stride).iter_unpack(entries)])
    work = StepWork(PARTITIONS_PER_STEP)
    for name, topic in list(link.topics.items()):
        kept = present.get(name, set())
        gone = [id_ for id_ in topic.partitions if id_ not in kept]
        for partition in gone:
            _set_aside(link, topic, partition, now)
        if work.is_enough(1 + len(gone)):
            yield
