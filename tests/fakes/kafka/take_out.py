# SPDX-License-Identifier: Apache-2.0
"""What a leader's sidecar takes out of an answer: as the scanner does it, without the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weir.protocol.records import RecordsSeen
from weir.protocol.response_scanner import ScannedTopic
from weir.protocol.take_out import MOST_HELD, Passing
from weir.quota.fetch.decisions import Forward


def take_out(topics: Sequence[ScannedTopic], decision: Forward) -> list[ScannedTopic]:
    """What a scanner sees of an answer. What its `size` says goes on to the follower."""
    admit = decision.expected.admit
    if admit is None:
        return list(topics)
    size = sum(seen.size for topic in topics for seen in topic.records)
    holds_all = decision.expected.holds_all and size <= MOST_HELD
    is_first = True
    result = []
    for topic in topics:
        records = []
        for seen in topic.records:
            passing = admit(topic.name, seen.partition, seen.size) if is_first or holds_all else Passing.ALL
            is_first = False
            if passing is Passing.NOTHING:
                batch = seen.largest or seen.next_batch_size or seen.size
                seen = RecordsSeen(seen.partition, 0, next_batch_size=batch, taken_out=seen.size)
            elif passing is Passing.WHOLE_BATCHES and holds_all and seen.cut_bytes:
                seen = replace(seen)
                seen.take_out_tail()
            records.append(seen)
        result.append(topic._replace(records=records))
    return result


def passed(topics: Sequence[ScannedTopic]) -> list[ScannedTopic]:
    """What the next hop sees of them."""
    return [
        topic._replace(records=[replace(seen, taken_out=0) for seen in topic.records if seen.size]) for topic in topics
    ]
