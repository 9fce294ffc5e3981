# SPDX-License-Identifier: Apache-2.0
"""What one link knows of each partition that its follower fetches, over one connection and in one leader epoch.

Nothing outlives the connection: an empty entry with a stale high watermark could destroy a replica.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from weir.lag.asked_topic import AskedTopic
from weir.protocol.fetch_response import NOT_LEADER_OR_FOLLOWER, made_up_entries
from weir.quota.batches import BatchSizes
from weir.quota.budget.quota import Part, Quota, TopicCoverage
from weir.quota.figures import STUCK_SECONDS

UNKNOWN_OFFSET = -1


class LeaderEntry(Enum):
    """What the leader's session has of a partition."""

    ABSENT = auto()
    AS_CAME = auto()  # exactly as in the follower's latest request
    CAPPED = auto()  # the same but for partition_max_bytes


@dataclass(slots=True, eq=False)
class ReplicaPartition:
    """One partition, as the follower's last request and the leader's last answers show it."""

    topic: ReplicaTopic
    partition: int
    fetch_offset: int
    max_bytes: int
    high_watermark: int = UNKNOWN_OFFSET
    last_reported: int = UNKNOWN_OFFSET  # the last one in an answer; kept when `high_watermark` becomes unknown
    highest: int = UNKNOWN_OFFSET  # the high watermark below which all is committed, see `committed`
    lower_since: float = math.inf  # clock seconds: since when lower ones are told
    in_sync_from: int = UNKNOWN_OFFSET  # the least fetch offset in sync until then: what it had caught up with before
    in_sync_until: float = -math.inf  # clock seconds; see `keep_in_sync`
    batches: BatchSizes = field(default_factory=BatchSizes)
    served_number: int = 0  # number of the link's last answer with records of it
    entry: bytes = b""  # from v7 on: its latest entry as on the wire
    at_leader: LeaderEntry = LeaderEntry.ABSENT

    @property
    def has_caught_up(self) -> bool:
        """Whether the fetch offset has reached the high watermark last reported."""
        return UNKNOWN_OFFSET < self.high_watermark <= self.fetch_offset

    def is_in_sync(self, now: float) -> bool:
        """Whether it has caught up, or had lately (see `keep_in_sync`)."""
        return self.has_caught_up or now < self.in_sync_until

    @property
    def is_waiting(self) -> bool:
        """Whether it needs budget: throttled, and not known to be in sync."""
        return self.partition in self.topic.behind or self.partition in self.topic.unknown

    @property
    def quotas(self) -> list[Quota]:
        """The quotas that may hold its bytes back."""
        return [quota for quota, covered in self.topic.coverage if quota.limits and self.partition in covered]

    def keep_in_sync(self, since: int, until: float) -> None:
        """Have it count as in sync until then, from offset `since` on: it has caught up with that high watermark.

        Kafka's leader (0.10.2 and later) waits for such a replica until it was not caught up for
        `replica.lag.time.max.ms`, and so do producers with acks=all. One that goes back further may have been deleted
        and made anew.
        """
        self.in_sync_from, self.in_sync_until = since, until

    def committed(self, high_watermark: int, now: float) -> int:
        """Return up to where all is committed, where a leader tells `high_watermark`.

        Committed records do not vanish, but a leader may know of fewer for a while. So a lower one counts when it was
        told for STUCK_SECONDS, or after its follower has gone back: else who is far behind would be in sync.
        """
        if high_watermark >= self.highest or now >= self.lower_since + STUCK_SECONDS:
            self.highest, self.lower_since = high_watermark, math.inf
        else:
            self.lower_since = min(self.lower_since, now)
        return self.highest

    def go_back(self, fetch_offset: int, in_sync_until: float, *, truncates: bool) -> None:
        """Drop the high watermark, as the fetch offset went back or a leader epoch may have begun.

        What had caught up with it counts as in sync until `in_sync_until`. Followers that `truncate` (below 0.11,
        KIP-101) go back to their own high watermark, one fetch older. Example: 80, then 100 were told, and the follower
        was at 85, then 105. It counts as in sync from 100 on, and if it truncates from 80 on.
        """
        if self.has_caught_up:
            known = truncates and self.in_sync_from != UNKNOWN_OFFSET
            self.keep_in_sync(self.in_sync_from if known else self.high_watermark, in_sync_until)
        if fetch_offset < self.in_sync_from:
            self.in_sync_until = -math.inf
        if fetch_offset < self.fetch_offset:
            self.highest = UNKNOWN_OFFSET
        self.high_watermark = UNKNOWN_OFFSET
        self.batches.arrived = 0

    def forget_sync(self) -> None:
        """Forget what belonged to an earlier replica: this one is empty, so it was deleted and is moved here again.

        The last batch of a log is mostly smaller. Remembered, it would make sizes look uneven for the whole move.
        Where the replica was empty before, too, the size of its first batch is still true.
        """
        self.in_sync_until = -math.inf
        if self.fetch_offset:
            self.batches = BatchSizes()


@dataclass(slots=True, eq=False)
class ReplicaTopic:
    """One topic's partitions, as one follower fetches them."""

    key: bytes  # as on the wire: the name, from v13 on the id
    name: bytes | None  # None while it is not known for the id
    lag: AskedTopic
    throttled: Container[int]
    coverage: TopicCoverage  # for each quota, the partitions that belong to it
    tags: bytes = b""  # the topic's own tag buffer in requests (v12+)
    partitions: dict[int, ReplicaPartition] = field(default_factory=dict)
    absent: dict[int, ReplicaPartition] = field(default_factory=dict)  # remembered, but not asked for now
    behind: dict[int, ReplicaPartition] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)  # throttled partitions without a known high watermark
    batches: BatchSizes = field(default_factory=BatchSizes)  # of the topic as a whole
    made_up: tuple[int, bytes] | None = None  # version and entries of all behind, kept while they stay the same

    def made_up_entries(self, api_version: int, behind: Collection[ReplicaPartition]) -> bytes:
        """Encode an empty response entry for each of `behind`: no records, and the last high watermark.

        Where this connection was told none, it is NOT_LEADER_OR_FOLLOWER, and the follower asks again soon.
        """
        is_whole = len(behind) == len(self.behind)
        if is_whole and self.made_up is not None and self.made_up[0] == api_version:
            return self.made_up[1]
        marks = [(one.partition, one.high_watermark) for one in behind]
        entries = made_up_entries(api_version, marks, error_if_unknown=NOT_LEADER_OR_FOLLOWER)
        if is_whole:
            self.made_up = api_version, entries
        return entries


@dataclass(slots=True)
class InFlight:
    """A forwarded fetch that is not answered yet."""

    parts: Mapping[Quota, Part] = field(default_factory=dict)  # what was granted of each quota
    max_bytes: int = 0  # of the whole answer
    grants: Mapping[ReplicaPartition, int] = field(default_factory=dict)  # the bytes that each may bring
    grants_are_first: bool = False  # whether the grants stand in front of everything else
    shares_max_bytes: bool = False  # whether grants share the answer's bytes, so that each may have all of them
    asks_all: bool = False  # whether it has every partition that waits, so that its answer is true for all
    is_lent: bool = False  # whether nothing is set aside for its answer before that begins
    is_passed: bool = False  # whether it was forwarded as it came: nothing of it waited
    forwarded_at: float = 0.0  # clock seconds
    answer_began_at: float | None = None  # clock seconds; None while it did not, and where it came in one piece
    max_wait_seconds: float = 0.0
    is_whole: bool = False  # whether its answer has come whole, and is being settled


Grant = tuple[ReplicaPartition, int]  # A partition and its partition_max_bytes
