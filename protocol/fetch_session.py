# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions (KIP-227, v7+): the state that a follower has of its session, and the state that a leader has.

A sidecar that leaves partitions out cannot let the two share a session, as the follower's has partitions that the
leader's must not have. So it acts as a broker towards the follower (FollowerSession, as Kafka's FetchSession.scala),
and as a follower towards the leader (LeaderSession, as FetchSessionHandler.java).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weir.protocol.fetch_versions import MAX_INT32

FIRST_SESSION_VERSION: Final = 7

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""The request lists everything and asks for a new session. A session that it names is closed first."""
FINAL_EPOCH: Final = -1
"""The request lists everything and asks for no session. A session that it names is closed."""

FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
FETCH_SESSION_TOPIC_ID_ERROR: Final = 106
SESSION_ERRORS: Final = frozenset(
    (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR)
)


def next_epoch(epoch: int) -> int:
    """Return the epoch after `epoch` (> 0 or INITIAL_EPOCH); it is never one of the two special ones."""
    return 1 if epoch == MAX_INT32 else epoch + 1


@dataclass(slots=True)
class FollowerSession:
    """The session with the follower of a connection; `id` is NO_SESSION while there is none.

    After a broken connection a follower begins with a full fetch, so no session outlives its connection.
    """

    id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH

    def begin(self, session_id: int) -> None:
        """Begin a session that a full fetch asked for; it replaces an earlier one."""
        self.id = session_id
        self.epoch = next_epoch(INITIAL_EPOCH)

    def take(self, session_id: int, epoch: int, *, changes_names: bool = False) -> int:
        """Take an incremental fetch. Returns 0, or the error code to answer it with; an error changes nothing.

        `changes_names`: the fetch before named topics otherwise, by name or by id.
        """
        if session_id != self.id or self.id == NO_SESSION:
            return FETCH_SESSION_ID_NOT_FOUND
        if epoch != self.epoch:
            return INVALID_FETCH_SESSION_EPOCH
        if changes_names:
            return FETCH_SESSION_TOPIC_ID_ERROR
        self.epoch = next_epoch(epoch)
        return 0

    def end(self) -> None:
        """End the session: its follower closed or emptied it, or its leader answered with an error."""
        self.id = NO_SESSION


@dataclass(slots=True)
class LeaderSession:
    """The link's own session with the leader: the id and epoch for the next request.

    `answered` takes the response. Only one request may be under way at a time.
    """

    id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH

    def answered(self, error_code: int, session_id: int) -> None:
        """Take a response's head.

        After an error, or where the leader keeps no session, the next request is a full one.
        """
        if error_code == 0 and session_id != NO_SESSION:
            self.epoch = next_epoch(self.epoch if session_id == self.id else INITIAL_EPOCH)
            self.id = session_id
            return
        self.epoch = INITIAL_EPOCH
        # an unknown session cannot be closed; any other one is closed by the full request
        if error_code in (0, FETCH_SESSION_ID_NOT_FOUND):
            self.id = NO_SESSION

    def begin_anew(self) -> None:
        """Have the next request be a full one, which closes the present session."""
        self.epoch = INITIAL_EPOCH
