"""Fetch sessions (KIP-227), v7 and later: what a follower believes, and what its leader believes, each kept apart.

A sidecar that leaves partitions out cannot let the two share one session: the follower's holds partitions that the
leader's does not. So it is a broker to the follower (FollowerSession, as Kafka's FetchSession.scala) and a follower to
the leader (LeaderSession, as FetchSessionHandler.java).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.fetch_versions import MAX_INT32

FIRST_SESSION_VERSION: Final = 7

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""Asks for a new session with all that the request lists; a session that it names is closed first."""
FINAL_EPOCH: Final = -1
"""Asks for all that the request lists and for no session; a session that it names is closed."""

FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
FETCH_SESSION_TOPIC_ID_ERROR: Final = 106
SESSION_ERRORS: Final = frozenset(
    (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR)
)


def next_epoch(epoch: int) -> int:
    """The epoch behind `epoch` (> 0 or INITIAL_EPOCH); it never becomes one of the two special ones."""
    return 1 if epoch == MAX_INT32 else epoch + 1


@dataclass(slots=True)
class FollowerSession:
    """The session of a connection's follower; `id` is NO_SESSION while there is none.

    A follower whose connection broke begins with a full fetch, so a session never outlives its connection.
    """

    id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    uses_topic_ids: bool = False

    def begin(self, session_id: int, uses_topic_ids: bool) -> None:
        """A full fetch asked for a session: it replaces the one that there was."""
        self.id = session_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.uses_topic_ids = uses_topic_ids

    def take(self, session_id: int, epoch: int, uses_topic_ids: bool) -> int:
        """Take an incremental fetch; returns 0, or the error code to answer it with, which changes nothing."""
        if session_id != self.id or self.id == NO_SESSION:
            return FETCH_SESSION_ID_NOT_FOUND
        if epoch != self.epoch:
            return INVALID_FETCH_SESSION_EPOCH
        if uses_topic_ids != self.uses_topic_ids:
            return FETCH_SESSION_TOPIC_ID_ERROR
        self.epoch = next_epoch(epoch)
        return 0

    def end(self) -> None:
        """The session is over: closed or emptied by its follower, or its leader answered with an error."""
        self.id = NO_SESSION


@dataclass(slots=True)
class LeaderSession:
    """Our session with the leader: the id and epoch that the next request names.

    `answered` takes what came back. One request at a time may be on its way.
    """

    id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH

    @property
    def needs_full(self) -> bool:
        """Whether the leader has no session to add to: the next request has to list everything that it asks for."""
        return self.epoch == INITIAL_EPOCH

    def answered(self, error_code: int, session_id: int) -> None:
        """Take a response's head. After an error, or where the leader keeps no session, a full request follows."""
        if error_code == 0 and session_id != NO_SESSION:
            self.epoch = next_epoch(self.epoch if session_id == self.id else INITIAL_EPOCH)
            self.id = session_id
            return
        self.epoch = INITIAL_EPOCH
        # One that is not known cannot be closed; any other is, by the full request.
        if error_code in (0, FETCH_SESSION_ID_NOT_FOUND):
            self.id = NO_SESSION

    def begin_anew(self) -> None:
        """The next request is to be a full one; it closes the session that there is."""
        self.epoch = INITIAL_EPOCH
