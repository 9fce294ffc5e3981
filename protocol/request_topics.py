# SPDX-License-Identifier: Apache-2.0
"""The topics array of a Fetch request; the partitions stay packed."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from weir.protocol.errors import MalformedFrame, TooMany
from weir.protocol.fetch_versions import TOPIC_ID_SIZE, FetchVersion
from weir.protocol.primitives import CLASSIC, COMPACT, COUNT, NO_TAGS, STRING_LENGTH
from weir.protocol.steps import Steps, StepWork
from weir.protocol.varint import after_tags, encode_unsigned_varint, read_tag_count, read_unsigned_varint

SMALLEST_TOPIC: Final = STRING_LENGTH.size + COUNT.size
"""Bytes of a topic with an empty name and no partitions. No count can be above the bytes left divided by this."""

MOST_TOPICS: Final = 50_000
"""The most topics of a request that is decoded: these take tenths of a second, in steps or in one go."""

MOST_PARTITIONS: Final = 200_000
"""The most partitions of a request that is decoded. Kafka recommends no more in a whole cluster."""

STEP_TOPICS: Final = 500
"""The topics that are read or written in one step of about 1 ms."""

_STEP_PARTITIONS: Final = 1_000  # that look different, in one step, in whatever topics
_RUN_TOPICS: Final = 32  # that are compared at once with those of the request before
_MOST_RUN_TOPICS: Final = 2 * _RUN_TOPICS  # a run that came again ends another one, which may not grow each time
_MOST_KEPT: Final = 2**20  # bytes of topics that are kept to be compared
_SMALLEST_COMPACT_TOPIC: Final = 3  # one byte each for an empty name's length, a count, and a tag buffer
_SMALLEST_TAGS: Final = len(NO_TAGS)
# learnt from one request: where every topic looks different, learning costs more than it saves
_MOST_PATTERNS: Final = 1_000
_SHORT_TAGS: Final = 64  # bytes: topics with longer tags are not compared, as it would cost more than it saves
_LENGTHS: Final = [STRING_LENGTH.pack(length) for length in range(250)]  # of all names that Kafka allows
_FEW_PARTITIONS: Final = 8  # of a topic: from there on, looking at each topic costs less than comparing many


class RequestTopic(NamedTuple):
    """One topic of a request, or some neighbouring partitions of one.

    `name` is UTF-8 as on the wire; from v13 on it is the topic's id (16 bytes). `entries` are the partitions, one after
    the other as on the wire with their tag buffers, each of `stride` bytes.

    A topic whose partitions have tags of different lengths (v12+) comes as several neighbours with one name. All but
    the last have `tags` of b""; the last has the topic's tag buffer. They are written as one topic again. Below v12,
    every RequestTopic is written as a topic of its own.
    """

    name: bytes
    entries: bytes
    stride: int
    tags: bytes = b""


_ENTRIES: Final = itemgetter(1)


class _Pattern(NamedTuple):
    """What partitions of one stride look like: `columns` has (offset, value) of each byte of a tag length."""

    stride: int
    columns: tuple[tuple[int, int], ...]


def check_counts(topics: int, partitions: int = 0) -> None:
    """Raise TooMany where a request lists more than is decoded."""
    if topics > MOST_TOPICS:
        raise TooMany("topics", topics, MOST_TOPICS)
    if partitions > MOST_PARTITIONS:
        raise TooMany("partitions", partitions, MOST_PARTITIONS)


def count_partitions(topics: Sequence[RequestTopic], row: FetchVersion) -> int:
    """Return how many partitions `topics` of a request have."""
    if row.is_flexible:
        return sum([len(entries) // stride for _, entries, stride, _ in topics])
    return sum(map(len, map(_ENTRIES, topics))) // row.partition_size  # all have one size: no loop


def smallest_topic(row: FetchVersion) -> int:
    """Return the least bytes that a topic takes."""
    if row.names_topics_by_id:
        return TOPIC_ID_SIZE + 2
    return _SMALLEST_COMPACT_TOPIC if row.is_flexible else SMALLEST_TOPIC


def read_name(frame: bytes, at: int, row: FetchVersion) -> tuple[bytes, int]:
    """Read a topic's name, or its id in versions with ids. Returns it and the offset after it."""
    if not row.names_topics_by_id:
        return (COMPACT if row.is_flexible else CLASSIC).read_string(frame, at)
    end = at + TOPIC_ID_SIZE
    if end > len(frame):
        raise MalformedFrame("the frame ends within a topic id", len(frame))
    return frame[at:end], end


def write_name(name: bytes, row: FetchVersion) -> bytes:
    """Encode a topic's name or id."""
    if row.names_topics_by_id:
        return name
    return (COMPACT if row.is_flexible else CLASSIC).string(name)


class TopicRun(NamedTuple):
    """Neighbouring topics of one request: `wire` as they came, and the sum of their `partitions`."""

    wire: bytes
    topics: list[RequestTopic]
    partitions: int
    stride: int


Runs = dict[bytes, TopicRun]
"""The topics of one request in runs, each by the name of its first topic."""


def read_classic_topics(
    frame: bytes, position: int, row: FetchVersion, runs: Runs
) -> Steps[tuple[list[RequestTopic], int]]:
    """Read the topics array at `position`, below v12. Returns it and the offset after it; raises as `check_counts`.

    `runs` are those of the request before, and then of this one. A run that came before is not read again: a follower
    changes little from one fetch to the next.
    """
    frame, size = bytes(frame), len(frame)  # names of a bytearray could not be looked up
    stride = row.partition_size
    if position + COUNT.size > size:
        raise MalformedFrame("the frame ends within the count of topics", size)
    (count,) = COUNT.unpack_from(frame, position)
    position += COUNT.size
    if not 0 <= count <= (size - position) // SMALLEST_TOPIC:
        raise MalformedFrame(f"{count} topics cannot stand in {size - position} bytes", position - COUNT.size)
    check_counts(count)
    total = done = 0
    topics: list[RequestTopic] = []
    kept, first_at, step_end = Runs(), position, STEP_TOPICS
    run_at, run_from, run_end, run_total = position, 0, _RUN_TOPICS, 0  # of the run that is put together
    string_length, entry_count = STRING_LENGTH.unpack_from, COUNT.unpack_from  # saves two look-ups for each topic
    make, append = tuple.__new__, topics.append  # takes half as long as the class's own constructor
    while done < count:
        name_start = position + 2
        if name_start > size:
            raise MalformedFrame("the frame ends within the length of a topic name", size)
        (length,) = string_length(frame, position)
        name_end = name_start + length
        entries_start = name_end + 4
        if length < 0 or entries_start > size:
            raise MalformedFrame(f"a topic name of {length} bytes does not fit into the frame", position)
        name = frame[name_start:name_end]
        run = runs.get(name)
        if (
            run is None
            or run.stride != stride
            or done + len(run.topics) > min(count, run_from + _MOST_RUN_TOPICS)
            or not frame.startswith(run.wire, position)
        ):
            (partitions,) = entry_count(frame, name_end)
            position = entries_start + partitions * stride
            if partitions < 0 or position > size:
                raise MalformedFrame(f"{partitions} partitions do not fit into the frame", name_end)
            total += partitions
            append(make(RequestTopic, (name, frame[entries_start:position], stride, b"")))
            done += 1
        else:
            position += len(run.wire)
            total += run.partitions
            topics += run.topics
            done += len(run.topics)
        if total > MOST_PARTITIONS:
            check_counts(count, total)
        if done >= run_end:
            kept[topics[run_from].name] = TopicRun(frame[run_at:position], topics[run_from:], total - run_total, stride)
            run_at, run_from, run_end, run_total = position, done, done + _RUN_TOPICS, total
            if step_end <= done < count:
                step_end = done + STEP_TOPICS
                yield
    runs.clear()
    if position - first_at <= _MOST_KEPT:
        runs.update(kept)
    return topics, position


def write_classic_topics(parts: list[bytes], topics: Sequence[RequestTopic], row: FetchVersion) -> Steps[None]:
    """Append the topics array of a version below v12. ValueError when a topic's entries are of another version."""
    size = row.partition_size
    string_length, entry_count, one = STRING_LENGTH.pack, COUNT.pack, COUNT.pack(1)
    parts.append(entry_count(len(topics)))
    for start in range(0, len(topics), STEP_TOPICS):
        if start:
            yield
        step: list[bytes] = []
        for name, entries, stride, _ in topics[start : start + STEP_TOPICS]:
            if len(entries) == size == stride and len(name) < len(_LENGTHS):
                step += (_LENGTHS[len(name)], name, one, entries)  # most topics of a long list: no call for each
                continue
            if stride != size or len(entries) % size:
                raise ValueError(f"Entries of {stride} bytes cannot stand in v{row.api_version}, which has {size}.")
            step += (string_length(len(name)), name, entry_count(len(entries) // stride), entries)
        parts.append(b"".join(step))  # so that little is left to join at the end


def read_compact_topics(frame: bytes, at: int, row: FetchVersion) -> Steps[tuple[list[RequestTopic], int]]:
    """Read the topics array at `at`, from v12 on. Returns it and the offset after it; raises as `check_counts`."""
    count, at = COMPACT.read_count(frame, at, smallest_topic(row))
    check_counts(count)
    total = 0
    fixed = row.partition_size
    pattern = _Pattern(fixed + _SMALLEST_TAGS, ((fixed, 0),))
    patterns_left = _MOST_PATTERNS
    topics: list[RequestTopic] = []
    make, work = tuple.__new__, StepWork(_STEP_PARTITIONS)  # the first as in read_classic_topics
    for start in range(0, count, STEP_TOPICS):
        if start:
            yield
        for _ in range(min(count - start, STEP_TOPICS)):
            name, at = read_name(frame, at, row)
            partitions, at = COMPACT.read_count(frame, at, fixed + _SMALLEST_TAGS)
            total += partitions
            if total > MOST_PARTITIONS:
                check_counts(count, total)
            # topics are mostly alike, so the last topic's pattern is tried first
            if not _matches(frame, at, partitions, pattern):
                is_alike = False
                if patterns_left:
                    patterns_left -= 1
                    pattern = _pattern_of(frame, at, fixed)
                    is_alike = _matches(frame, at, partitions, pattern)
                if not is_alike:
                    at = yield from _read_unlike_partitions(frame, at, partitions, fixed, name, topics, work)
                    last = topics[-1]
                    tags, at = _read_topic_tags(frame, at)
                    topics[-1] = RequestTopic(name, last.entries, last.stride, tags)
                    continue
            end = at + partitions * pattern.stride
            entries = frame[at:end]
            tags, at = _read_topic_tags(frame, end)
            topics.append(make(RequestTopic, (name, entries, pattern.stride, tags)))
    return topics, at


def after_identified_topics(frame: bytes, at: int, row: FetchVersion) -> Steps[int]:
    """Return the offset after the topics array at `at`, from v13 on, without decoding it.

    Raises MalformedFrame where the array does not fit into the frame, and as `check_counts`.
    """
    left, at = COMPACT.read_count(frame, at, smallest_topic(row))
    check_counts(left)
    total = 0
    fixed = row.partition_size
    pattern = _Pattern(fixed + _SMALLEST_TAGS, ((fixed, 0),))
    patterns_left = _MOST_PATTERNS
    unlike: list[RequestTopic] = []
    work = StepWork(_STEP_PARTITIONS)
    while left:
        start = at
        partitions, first = COMPACT.read_count(frame, start + TOPIC_ID_SIZE, fixed + _SMALLEST_TAGS)
        total += partitions
        check_counts(left, total)
        is_alike = _matches(frame, first, partitions, pattern)
        if not is_alike and patterns_left:
            patterns_left -= 1
            pattern = _pattern_of(frame, first, fixed)
            is_alike = _matches(frame, first, partitions, pattern)
        if is_alike:
            behind = first + partitions * pattern.stride
        else:
            behind = yield from _read_unlike_partitions(frame, first, partitions, fixed, b"", unlike, work)
        at = after_tags(frame, behind)
        left -= 1
        if work.is_enough(_STEP_PARTITIONS // STEP_TOPICS):
            yield
        count_at, step = start + TOPIC_ID_SIZE, 1
        next_count = frame[at + TOPIC_ID_SIZE : at + first - start]
        is_small = is_alike and partitions <= _FEW_PARTITIONS and at - behind <= _SHORT_TAGS
        if is_small and patterns_left and left and next_count == frame[count_at:first]:
            patterns_left -= 1
            # Many small topics are mostly alike: several of those that follow are skipped at once.
            lengths = [*range(count_at, first), *range(behind, at)]
            for entry in range(first, behind, pattern.stride):
                lengths += [entry + offset for offset, _ in pattern.columns]
            topic = _Pattern(at - start, tuple([(offset - start, frame[offset]) for offset in lengths]))
            while (step := min(step, left)) and _matches(frame, at, step, topic):
                at += step * topic.stride
                left -= step
                total += step * partitions
                step *= 2
    check_counts(0, total)
    if at > len(frame):
        raise MalformedFrame("the frame ends within a topic", len(frame))
    return at


def write_compact_topics(parts: list[bytes], topics: Sequence[RequestTopic], row: FetchVersion) -> Steps[None]:
    """Append the topics array of v12 and later, with neighbours of one topic joined again.

    Raises ValueError when a topic's entries are of a version below v12, or its name is no id where ids are needed.
    """
    fixed = row.partition_size
    for index, (name, entries, stride, _) in enumerate(topics):
        if stride <= fixed or len(entries) % stride:
            raise ValueError(
                f"Entries of {stride} bytes cannot stand in v{row.api_version}, which has {fixed} and tags."
            )
        if row.names_topics_by_id and len(name) != TOPIC_ID_SIZE:
            raise ValueError(f"A topic id has {len(name)} bytes.")
        if not (index + 1) % _STEP_PARTITIONS:
            yield
    count_at = len(parts)
    parts.append(b"")  # the count of topics, filled in at the end
    by_id = row.names_topics_by_id
    count = index = 0
    step_at, step_end = len(parts), STEP_TOPICS
    while index < len(topics):
        name, entries, stride, tags = topics[index]
        partitions = len(entries) // stride
        index += 1
        if tags or index == len(topics) or topics[index].name != name:
            parts += (name if by_id else write_name(name, row), encode_unsigned_varint(partitions + 1), entries)
        else:
            blocks = [entries]
            while not tags and index < len(topics) and topics[index].name == name:
                _, entries, stride, tags = topics[index]
                partitions += len(entries) // stride
                blocks.append(entries)
                index += 1
                if not len(blocks) % STEP_TOPICS:
                    yield
            parts += (name if by_id else write_name(name, row), encode_unsigned_varint(partitions + 1), *blocks)
        parts.append(tags or NO_TAGS)
        count += 1
        if index >= step_end:
            parts[step_at:] = [b"".join(parts[step_at:])]  # as in write_classic_topics
            step_at, step_end = len(parts), index + STEP_TOPICS
            yield
    parts[count_at] = COMPACT.count(count)


def _matches(frame: bytes, at: int, partitions: int, pattern: _Pattern) -> bool:
    """Return whether `partitions` partitions at `at` look like `pattern`; compared column by column, without a loop."""
    if not partitions:
        return at <= len(frame)
    stride = pattern.stride
    end = at + partitions * stride
    if end > len(frame):
        return False
    for offset, value in pattern.columns:  # a generator in all() takes twice as long  # noqa: SIM110
        if frame[at + offset : end : stride].count(value) != partitions:
            return False
    return True


def _pattern_of(frame: bytes, at: int, fixed: int) -> _Pattern:
    """Return what the partition at `at` looks like."""
    offsets: list[int] = []

    def read(start: int) -> tuple[int, int]:
        value, end = read_unsigned_varint(frame, start)
        offsets.extend(range(start - at, end - at))
        return value, end

    read_tag_count(frame, at + fixed)
    count, end = read(at + fixed)
    while count and end <= len(frame):
        _, end = read(end)
        size, end = read(end)
        end += size
        count -= 1
    if end > len(frame):
        raise MalformedFrame("a partition's tags pass the end of the frame", at)
    return _Pattern(end - at, tuple([(offset, frame[at + offset]) for offset in offsets]))


def _read_unlike_partitions(
    frame: bytes, at: int, partitions: int, fixed: int, name: bytes, topics: list[RequestTopic], work: StepWork
) -> Steps[int]:
    """Read partitions one by one, and join neighbours of one stride. Returns the offset after them."""
    start, stride, size = at, 0, len(frame)
    for taken in range(0, partitions, _STEP_PARTITIONS):
        some = min(partitions - taken, _STEP_PARTITIONS)
        if work.is_enough(some):
            yield
        for _ in range(some):
            tags_at = at + fixed
            end = tags_at + 1 if tags_at < size and not frame[tags_at] else after_tags(frame, tags_at)
            if end > size:
                raise MalformedFrame("a partition's tags pass the end of the frame", at)
            if end - at != stride:
                if at > start:
                    topics.append(RequestTopic(name, frame[start:at], stride))
                    check_counts(len(topics))
                start, stride = at, end - at
            at = end
    topics.append(RequestTopic(name, frame[start:at], stride))
    return at


def _read_topic_tags(frame: bytes, at: int) -> tuple[bytes, int]:
    tags, end = COMPACT.read_tags(frame, at)
    return tags or NO_TAGS, end
