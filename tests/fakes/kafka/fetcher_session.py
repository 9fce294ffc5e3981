# SPDX-License-Identifier: Apache-2.0
"""A follower's fetch session: FetchSessionHandler.java of Kafka (KIP-227)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tests.fakes.kafka.sessions import Key
from weir.protocol.fetch_request import ForgottenTopic
from weir.protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import ResponseHead, ScannedTopic

BACKOFF_SECONDS = 1.0  # replica.fetch.backoff.ms


def answered_partitions(topics: Iterable[ScannedTopic]) -> Iterator[tuple[Key, int]]:
    """Yield the partitions of an answer, each with its error code."""
    for name, headers, _, _ in topics:
        for partition, error_code, _, _ in RESPONSE_ENTRY.iter_unpack(headers):
            yield (name, partition), error_code


class FetcherSession:
    """What a fetcher knows of its session; below v7 each of its fetches is full."""

    session_id = 0
    epoch = 0
    is_full = True  # whether the last fetch was
    in_session: frozenset[Key] = frozenset()
    complaint = ""  # what was wrong with the last answer, where no leader would answer so

    def next_fetch(
        self, wanted: Mapping[Key, object], changed: Iterable[Key]
    ) -> tuple[Collection[Key], tuple[ForgottenTopic, ...]]:
        """What the next fetch lists of the partitions wanted, and what it forgets."""
        self.is_full = self.epoch == 0
        if self.is_full:
            self.in_session = frozenset(wanted)
            return wanted, ()
        listed = [key for key in changed if key in wanted]
        gone, new = self.in_session - wanted.keys(), frozenset(listed) - self.in_session
        if gone or new:
            self.in_session = self.in_session - gone | new
        return listed, tuple([ForgottenTopic(name, (partition,)) for name, partition in sorted(gone)])

    def take_head(self, head: ResponseHead, topics: list[ScannedTopic]) -> bool:
        """Take an answer into the session. Returns whether its partitions are read."""
        self.complaint = ""
        if head.error_code:
            self.epoch = 0
            if head.error_code == FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            return False
        answered = [key for key, _ in answered_partitions(topics)]
        if self.is_full:
            self.session_id, self.epoch = head.session_id, 1 if head.session_id else 0
            if len(answered) == len(self.in_session) and self.in_session.issuperset(answered):
                return True
            self.session_id = self.epoch = 0
            if topics or head.throttle_time_ms <= 0:  # else it is legal (KIP-219)
                missing = sorted(self.in_session.difference(answered))
                counts = f"asked for {len(self.in_session)} partitions and got {len(answered)}, without {missing[:4]}"
                self.complaint = f"{counts}, throttle_time_ms {head.throttle_time_ms}"
            return False
        if not self.in_session.issuperset(answered):
            self.epoch, self.complaint = 0, "got a partition that its session has not"
            return False
        self.session_id, self.epoch = (head.session_id, self.epoch + 1) if head.session_id else (0, 0)
        return True
