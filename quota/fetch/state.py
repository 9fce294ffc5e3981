"""What one link knows of the partitions that its follower fetches.

All of it belongs to one connection and one leader epoch: a made-up entry with a stale high watermark could destroy a
replica, so nothing here outlives the connection.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from protocol.fetch import NO_LEADER_EPOCH, made_up_entries
from quota.batches import BatchSizes, LargestBatch
from quota.budget.ledger import StrictLedger
from quota.budget.quota import Quota
from quota.lag.asked_topic import AskedTopic

UNKNOWN_OFFSET = -1
Coverage = tuple[tuple[Quota, Container[int]], ...]
"""Quotas, each with the partitions of one topic that belong to it."""

NEVER = float("-inf")
_ID_SIZE = 4  # a block of entries goes by the id of its first partition


class Upstream(Enum):
    """What the leader has of a partition in our session with it."""

    ABSENT = auto()
    AS_CAME = auto()  # the follower's latest entry
    CAPPED = auto()  # the same, with another partition_max_bytes


class ReplicaPartition:
    """One partition as this follower's last request and this leader's last answers show it."""

    __slots__ = (
        "arrived",
        "batches",
        "behind",
        "earlier_high_watermark",
        "entry",
        "fetch_offset",
        "granted_offset",
        "high_watermark",
        "in_sync_from",
        "in_sync_until",
        "is_again",
        "is_due_again",
        "is_paced",
        "last_reported",
        "leader_epoch",
        "left_out_from",
        "max_bytes",
        "partition",
        "served_number",
        "topic",
        "turn",
        "turn_before",
        "upstream",
        "was_queued",
    )

    def __init__(self, topic: ReplicaTopic, partition: int, fetch_offset: int, max_bytes: int) -> None:
        self.topic = topic
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.high_watermark = UNKNOWN_OFFSET
        self.earlier_high_watermark = UNKNOWN_OFFSET  # the one before it
        self.last_reported = UNKNOWN_OFFSET  # the high watermark that the leader told last, whatever became of it here
        self.behind = False  # throttled, and known not to be in sync
        self.in_sync_from = UNKNOWN_OFFSET  # see `go_back`
        self.in_sync_until = NEVER  # clock seconds
        self.batches = BatchSizes()
        self.granted_offset = UNKNOWN_OFFSET  # the fetch offset at the last grant
        self.turn = 0.0  # where its next turn in the queue begins, in bytes
        self.turn_before = 0.0  # where the turn that it had last began
        self.is_due_again = False  # its next grant is in place of one that did not count as a turn
        self.is_again = False  # its last grant was such a one
        self.was_queued = False  # since it fell behind
        self.is_paced = False  # by an earlier hop
        self.served_number = 0  # the link's answers by the last one that had records of it
        self.arrived = 0  # bytes of whole batches in the last answer: the next fetch offset tells how many offsets
        self.leader_epoch = NO_LEADER_EPOCH
        self.left_out_from = 0  # while behind: it was left out as often as its link's `left_out_count` is beyond this
        self.entry = b""  # from v7 on: the follower's latest, as on the wire
        self.upstream = Upstream.ABSENT

    def advance(self, fetch_offset: int) -> None:
        """The follower asks from `fetch_offset` on, beyond the last one."""
        if self.arrived:
            per_offset = self.arrived / (fetch_offset - self.fetch_offset)
            self.batches.bytes_per_offset = self.topic.batches.bytes_per_offset = per_offset
            self.arrived = 0
        self.fetch_offset = fetch_offset

    @property
    def largest_batch(self) -> int:
        """What one whole batch of it may be, in bytes: as large as the topic's largest lately, or all that is asked.

        All that is asked as long as this link saw none of the topic's batches: others may have seen small ones only.
        """
        lately = self.topic.largest_batch.size if self.topic.batches.seen else 0
        return max(self.batches.next_size, lately) or self.max_bytes

    @property
    def has_caught_up(self) -> bool:
        """Whether the fetch offset has reached the high watermark last reported."""
        return UNKNOWN_OFFSET < self.high_watermark <= self.fetch_offset

    @property
    def stalls(self) -> bool:
        """Whether its last grant brought nothing: it may not hold up the others, the floor tries it again."""
        return self.granted_offset == self.fetch_offset

    @property
    def is_present(self) -> bool:
        """Whether the follower asks for it now."""
        return self.topic.partitions.get(self.partition) is self

    @property
    def is_waiting(self) -> bool:
        """Whether it needs budget: it is throttled, and not known to be in sync."""
        return self.behind or self.partition in self.topic.unknown

    def go_back(self, fetch_offset: int, in_sync_until: float = NEVER) -> None:
        """A leader epoch may have begun; the high watermark is unknown from now on.

        Below inter.broker.protocol.version 0.11 (before KIP-101) a follower then truncates to its own high watermark,
        which is a fetch older than its leader's. It stays in the ISR all the same, until `replica.lag.time.max.ms` is
        over: producers wait for it, and it may become the leader. One that goes back further was not truncated so.
        """
        if self.has_caught_up:
            known = self.earlier_high_watermark != UNKNOWN_OFFSET
            self.in_sync_from = self.earlier_high_watermark if known else self.high_watermark
            self.in_sync_until = in_sync_until
        if fetch_offset < self.in_sync_from:
            self.in_sync_until = NEVER
        self.high_watermark = self.earlier_high_watermark = UNKNOWN_OFFSET
        self.arrived = 0

    def forget_sync(self) -> None:
        """The replica is empty: it was deleted, and is moved here again.

        Its last batch, mostly a smaller one, would let all sizes count as uneven for the whole move.
        """
        self.in_sync_until = NEVER
        self.batches = BatchSizes()

    def worth_asking(self) -> int:
        """The partition_max_bytes that the rest of the partition is worth, where that is less than what was asked.

        All that was asked where the last grants brought nothing: then the estimate may be what is wrong.
        """
        if self.batches.barren:
            return self.max_bytes
        rest = self.batches.remaining(self.high_watermark - self.fetch_offset, self.topic.batches)
        return int(min(self.max_bytes, rest)) if self.high_watermark != UNKNOWN_OFFSET else self.max_bytes


class ReplicaTopic:
    """One topic's partitions of one follower.

    Idle partitions cost nothing per fetch: a block (consecutive entries of the topic) that repeats the fetch before,
    byte for byte, is not looked into. A topic may come in several blocks: Kafka groups neighbours only.
    """

    __slots__ = (
        "_earlier_blocks",
        "_request_blocks",
        "_request_number",
        "_response_blocks",
        "_response_number",
        "absent",
        "batches",
        "behind",
        "coverage",
        "key",
        "lag",
        "largest_batch",
        "made_up",
        "name",
        "partitions",
        "tags",
        "throttled",
        "unknown",
    )

    def __init__(
        self,
        key: bytes,
        name: bytes | None,
        lag: AskedTopic,
        throttled: Container[int],
        coverage: Coverage,
        largest_batch: LargestBatch,
    ) -> None:
        self.key = key  # as on the wire: the name, from v13 on the topic id
        self.name = name  # None while the id's name is not known
        self.tags = b""  # the topic's own tag buffer in requests (v12+)
        self.lag = lag
        self.throttled = throttled
        self.coverage = coverage  # by quota
        self.partitions: dict[int, ReplicaPartition] = {}
        self.absent: dict[int, ReplicaPartition] = {}  # not asked for now
        self.behind: dict[int, ReplicaPartition] = {}
        self.unknown: set[int] = set()  # throttled partitions whose high watermark is not known yet
        self.batches = BatchSizes()  # of the topic as a whole
        self.largest_batch = largest_batch  # of the topic on all links
        self.made_up: tuple[int, bytes] | None = None  # version and entries of all behind, while they stay the same
        self._request_number = self._response_number = -1
        self._earlier_blocks: dict[bytes, bytes] = {}
        self._request_blocks: dict[bytes, bytes] = {}
        self._response_blocks: dict[bytes, bytes] = {}

    def repeats_request(self, entries: bytes, number: int) -> bool:
        """Whether request `number` brings the same block as the request before it."""
        if self._request_number != number:
            self._request_number = number
            self._earlier_blocks, self._request_blocks = self._request_blocks, {}
        first = entries[:_ID_SIZE]
        self._request_blocks[first] = entries
        return self._earlier_blocks.get(first) == entries

    def repeats_response(self, headers: bytes, number: int) -> bool:
        """Whether response `number` brings nothing that the responses before it have not brought."""
        first = headers[:_ID_SIZE]
        if self._response_blocks.get(first) == headers:
            return True
        if self._response_number != number:
            # One block changed: how the others overlap with it is not known, so none of them counts as seen.
            self._response_number = number
            self._response_blocks = {}
        self._response_blocks[first] = headers
        return False

    def forget_requests(self) -> None:
        """The next request is to be looked into: a partition is no longer among those asked for."""
        self._earlier_blocks = {}
        self._request_blocks = {}

    def forget_responses(self) -> None:
        """The next answer is to be looked into: a partition waits for its high watermark."""
        self._response_blocks = {}

    def made_up_entries(self, api_version: int) -> bytes:
        """Response entries for every partition behind: no error, no records, and the high watermark sent last.

        Never a high watermark of -1: a follower that applies it goes back to its log start, and truncates there on
        old levels.
        """
        if self.made_up is None or self.made_up[0] != api_version:
            high_watermarks = [(id_, replica.high_watermark) for id_, replica in self.behind.items()]
            self.made_up = api_version, made_up_entries(api_version, high_watermarks)
        return self.made_up[1]


@dataclass(slots=True)
class InFlight:
    """A forwarded fetch whose answer is still to come."""

    api_version: int = 0
    uses_topic_ids: bool = False
    reserved: Mapping[StrictLedger, int] = field(default_factory=dict)  # bytes set aside
    max_bytes: int = 0  # of the whole answer
    granted: Sequence[ReplicaPartition] = ()
    grants_are_first: bool = False  # what was granted stands in front of all else
    is_probe: bool = False
    asks_all: bool = False  # every partition behind is in it, so its answer is true for all
    forwarded_at: float = 0.0  # clock seconds
    max_wait_seconds: float = 0.0


Grant = tuple[ReplicaPartition, int]
"""A partition and its partition_max_bytes."""
