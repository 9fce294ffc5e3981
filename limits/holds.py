# SPDX-License-Identifier: Apache-2.0
"""What a hold does to clients: how long a request of each kind waits, what waits behind it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Kind = Literal["fetch", "session_fetch", "share_fetch", "produce", "transaction"]
"""A Fetch without a session or in one, a ShareFetch, a Produce, and one that is transactional."""

MOST_OWED_SECONDS: Final = 5.0
"""For how many seconds of its limit a client may be ahead when a Produce gives way. Above that it is held as ever."""

ROUNDED_SECONDS: Final = 0.01
"""An answer comes so much later than `max_wait_ms`, which clients round, for it may not come earlier."""


class HoldFacts(NamedTuple):
    """One kind of request."""

    behind: str
    """What its client keeps waiting behind it, on the same connection."""
    part: float | None
    """For which part of the wait that the request itself names it is held; None: it names none that counts."""
    least: float
    """Seconds for which it is held anyway: an earlier answer would only be asked for again at once."""
    most: float
    """Seconds for which it is held at most."""
    gives_way: Literal["to all", "to other kinds"]
    """Which requests end the hold when they arrive behind it on the same connection.

    "to all": any request does, as an answer without records costs nothing. "to other kinds": one of another API does,
    such as a heartbeat behind a Produce. A Fetch behind a Produce does, too: sarama sends no heartbeat before that
    Fetch is answered.

    What it moves then counts: the client's next one waits for so much longer.
    """
    then: Literal["answered", "begins a session", "asks for no records", "passed"]
    """What becomes of it after that."""
    source: str
    """Where a client's code, or a KIP, says so."""

    def seconds(self, own_wait: float | None) -> float:
        """Return for how long it is held at most. `own_wait` is the wait that the request names, in seconds."""
        if self.part is None or own_wait is None:
            return self.most
        return min(self.most, max(self.least, self.part * own_wait))


HOLDS: Final[Mapping[Kind, HoldFacts]] = {
    "fetch": HoldFacts(
        behind="heartbeats and commits (sarama, KafkaJS), queries of offsets (librdkafka)",
        part=1.0,
        least=0.1,
        most=30.0,
        gives_way="to all",
        then="answered",
        source="A broker without records answers after max_wait_ms. kafka-go (conn.go, ReadBatchWith) takes an empty "
        "answer before that for a broken connection, and none within 1.33 x of it for a lost one.",
    ),
    "session_fetch": HoldFacts(
        behind="queries of offsets (Java); its heartbeats and commits, and franz-go's, have connections of their own",
        part=None,
        least=0.0,
        most=5.0,
        gives_way="to all",
        then="begins a session",
        source="KIP-227: an answer that the broker does not know of ends the session (INVALID_FETCH_SESSION_EPOCH). "
        "Java logs that as INFO.",
    ),
    "share_fetch": HoldFacts(
        behind="acknowledgements, also those that it carries",
        part=None,
        least=0.0,
        most=5.0,
        gives_way="to other kinds",
        then="asks for no records",
        source="KIP-932: records not acknowledged within group.share.record.lock.duration.ms (30 s, at least 15) come "
        "again, and the broker counts the session's requests. KIP-1222: one with is_renew_ack (v2) only acknowledges.",
    ),
    "produce": HoldFacts(
        behind="the producer's later requests: five of them (max.in.flight), or any number; sarama's heartbeats",
        part=0.75,
        least=0.0,
        most=20.0,
        gives_way="to other kinds",
        then="passed",
        source="kafka-go (writer.go) gives up after timeout_ms, Java and librdkafka after request.timeout.ms (30 s), "
        "and send the records again.",
    ),
    "transaction": HoldFacts(
        behind="all requests of the transaction, as a producer has one connection for everything",
        part=0.5,
        least=0.0,
        most=5.0,
        gives_way="to other kinds",
        then="passed",
        source="transaction.timeout.ms (60 s) goes on meanwhile.",
    ),
}
"""What a gate for clients goes by."""
