# SPDX-License-Identifier: Apache-2.0
"""The two fetch sessions of a link (KIP-227): one with its follower, kept as a broker would, and one with its leader.

The follower's session has everything that it asks for. The leader's has what is not throttled, as it came, and what is
granted at the moment; a partition that must wait is forgotten there. (With partition_max_bytes 0 it would return a
whole batch as soon as it came first.) So neither side sends a full fetch in the steady state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_session import (
    FINAL_EPOCH,
    FIRST_SESSION_VERSION,
    INITIAL_EPOCH,
    NO_SESSION,
    SESSION_ERRORS,
    FollowerSession,
    LeaderSession,
)
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.response_scanner import ResponseHead
from weir.quota.fetch.state import ReplicaPartition
from weir.quota.side_state import SideState
from weir.quota.topic_names import METADATA_LOG

LEFT_OUT_MS: Final = -1
"""throttle_time_ms of an answer in a session from which partitions were left out.

Normally, silence about a partition means that nothing is new. In such an answer it does not, and an earlier hop knows
by this value that it has to go on asking. Followers ignore values that are not above 0. A value above 0 would mute them
from v8 on (KIP-219); followers without KAFKA-17455 then wait for `replica.socket.timeout.ms`, 30 s.
"""


class FetchSessions:
    """The state of both sessions. `touched` holds the partitions of which the leader may have to be told something."""

    def __init__(self) -> None:
        self.follower = FollowerSession()
        self.leader = LeaderSession()
        self.touched: dict[ReplicaPartition, None] = {}
        self.is_asked_for_offsets = False
        """Whether an earlier hop asked for partitions with 0 bytes (its offset probe) and was not answered yet."""
        self.row = fetch_version(0)  # of the last request
        self.is_incremental = False  # whether the request under way lists only what changed

    @property
    def _has_sessions(self) -> bool:
        return self.row.api_version >= FIRST_SESSION_VERSION

    @property
    def in_session(self) -> bool:
        """Whether the follower has a session."""
        return self._has_sessions and self.follower.id != NO_SESSION

    def touch(self, replica: ReplicaPartition) -> None:
        """Note that the leader may have to be told something of a partition. Does nothing below v7."""
        if replica.entry:
            self.touched[replica] = None

    def enter(self, request: FetchRequest, side: SideState) -> int:
        """Take in a request's session fields. Returns 0, or the error code to answer it with."""
        changes_names = fetch_version(request.header.api_version).names_topics_by_id != self.row.names_topics_by_id
        if self.row.api_version != request.header.api_version:
            self.row = fetch_version(request.header.api_version)
        self.is_incremental = self._has_sessions and request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH)
        if not self._has_sessions:
            return 0
        if self.is_incremental:
            return self.follower.take(request.session_id, request.session_epoch, changes_names=changes_names)
        side.stats.full_fetches_received += not is_raft(request)
        session_id = self.follower.id
        self.follower.end()
        self.leader.begin_anew()
        if request.session_epoch == INITIAL_EPOCH:
            self.follower.begin(session_id or side.new_session_id())
        return 0

    def head_patch(self, *, leaves_out: bool = False) -> Callable[[ResponseHead], ResponseHead] | None:
        """Return what turns the head of the leader's response into the follower's; None below v7."""
        if not self._has_sessions:
            return None
        session_id, is_incremental = self.follower.id, self.is_incremental
        leaves_out = leaves_out and session_id != NO_SESSION

        def patch(head: ResponseHead) -> ResponseHead:
            if is_incremental and head.error_code in SESSION_ERRORS:
                # The link's own session is gone, the follower's is not. The follower is told that nothing is new, and
                # the next fetch begins another session with the leader.
                return head._replace(error_code=0, session_id=session_id)
            if head.error_code:
                return head
            throttle_time_ms = LEFT_OUT_MS if leaves_out and not head.throttle_time_ms else head.throttle_time_ms
            return head._replace(session_id=session_id, throttle_time_ms=throttle_time_ms)

        return patch


def is_raft(request: FetchRequest) -> bool:
    """Whether a request is a controller's for the metadata log alone: these have no session, and each is complete."""
    return len(request.topics) == 1 and request.topics[0].name in METADATA_LOG
