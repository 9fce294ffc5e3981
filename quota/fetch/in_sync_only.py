# SPDX-License-Identifier: Apache-2.0
"""One connection's fetches after the throttle failed on it again and again: what is in sync passes, and nothing else.

A bug may neither lift a quota nor break replication. So only offsets count here: it is meant to be too simple to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics, made_up_entries
from weir.protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import Expected, ResponseHead, ScannedTopic
from weir.protocol.steps import PER_STEP, Steps, StepWork
from weir.protocol.take_out import Passing
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.figures import PROBE_SECONDS
from weir.quota.topic_names import METADATA_LOG


class InSyncOnly:
    """Is used as a ReplicaLink is. It keeps no fetch sessions, so each request lists everything."""

    client_is_sidecar = is_lent = False  # it grants nothing

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._high_watermarks: dict[tuple[bytes, int], int] = {}  # as the leader reported last, by topic and partition
        self._asked_at = clock()

    def plan_steps(self, request: FetchRequest, held_seconds: float = 0.0) -> Steps[Decision]:
        """Decide about a request. What has no high watermark yet is asked for with 0 bytes."""
        version, now = request.header.api_version, self._clock()
        if request.session_epoch > 0:
            error = FETCH_SESSION_ID_NOT_FOUND
            return Answer(encode_fetch_response(version, request.header.correlation_id, 0, [], error_code=error))
        asks_all = now >= self._asked_at + PROBE_SECONDS
        row = fetch_version(version)
        in_sync, asked = list[RequestTopic](), list[RequestTopic]()
        left_out: list[ResponseTopic] = []
        asked_for: set[tuple[bytes, int]] = set()
        work = StepWork(PER_STEP)
        for name, entries, stride, tags in request.topics:
            kept, zero = list[bytes](), list[bytes]()
            behind: list[tuple[int, int]] = []
            for start, (partition, fetch_offset, _) in zip(
                range(0, len(entries), stride), row.requested(stride).iter_unpack(entries), strict=True
            ):
                if name in METADATA_LOG:
                    kept.append(entries[start : start + stride])
                    continue
                high_watermark = self._high_watermarks.get((name, partition))
                if high_watermark is not None and fetch_offset < high_watermark and not asks_all:
                    behind.append((partition, high_watermark))
                    continue
                is_in_sync = high_watermark is not None and fetch_offset >= high_watermark
                (kept if is_in_sync else zero).append(entries[start : start + stride])
                if not is_in_sync:
                    asked_for.add((name, partition))
            if kept:
                in_sync.append(RequestTopic(name, b"".join(kept), stride, tags))
            if zero:
                asked.append(RequestTopic(name, row.with_no_bytes(b"".join(zero), stride), stride, tags))
            if behind:
                left_out.append(ResponseTopic(name, made_up_entries(version, behind)))
            if work.is_enough(1 + len(entries) // stride):
                yield
        if asks_all:
            self._asked_at = now
        if not in_sync and not asked and left_out:
            until = now + request.max_wait_ms / 1000 - held_seconds
            if until > now:
                return Hold(min(until, self._asked_at + PROBE_SECONDS))
            return Answer(encode_fetch_response(version, request.header.correlation_id, 0, left_out))
        fewer = request.with_(topics=in_sync + asked, session_id=0, session_epoch=-1, forgotten=())

        def admit(name: bytes, partition: int, size: int) -> Passing:
            return Passing.NOTHING if (name, partition) in asked_for else Passing.ALL

        return Forward(fewer, Expected(encode_response_topics(version, left_out), len(left_out), admit=admit))

    def answer_begins(self, size: int) -> None:
        """Learn nothing from it."""

    def let_pass(self, arrived: int, on_way: float, most: float, waited: float) -> float:
        """Hold nothing back: nothing is granted."""
        return most

    def settle_steps(self, topics: Sequence[ScannedTopic], head: ResponseHead) -> Steps[None]:
        """Take in what the leader reported."""
        for number, (name, headers, _, _) in enumerate(topics, start=1):
            for partition, error_code, high_watermark, _ in RESPONSE_ENTRY.iter_unpack(headers):
                if error_code or high_watermark < 0:
                    self._high_watermarks.pop((name, partition), None)
                else:
                    self._high_watermarks[name, partition] = high_watermark
            if not number % PER_STEP:
                yield

    def close(self, came: Sequence[ScannedTopic] = (), *, is_over: bool = False) -> None:
        """End it. Nothing is reserved."""
        self._high_watermarks = {}

    def free_steps(self) -> Steps[None]:
        """Do nothing more."""
        yield from ()
