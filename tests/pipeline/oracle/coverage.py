# SPDX-License-Identifier: Apache-2.0
"""What was sampled, who was away, and what was set aside: `coverage`, `absences`, `quarantine`."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime

from tests.pipeline.oracle.lines import Day, Sample
from tests.pipeline.oracle.rates import Row
from weir.samples.schema import LinkLine


def coverage(day: Day) -> Iterator[Row]:
    """Yield what was sampled of each broker in each minute."""
    found: defaultdict[tuple[int, datetime], Row] = defaultdict(
        lambda: {"samples": 0, "seconds": 0.0, "missing": 0, "quarantined": 0}
    )
    known: defaultdict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in [*day.whole, *day.partial]:
        known[sample.process].append(sample)
        row = found[sample.broker_id, sample.window(60)]
        if sample.is_whole:
            row["samples"] += 1
            row["seconds"] += sample.seconds
        else:
            row["quarantined"] += 1
    for samples in known.values():
        samples.sort(key=lambda sample: sample.sequence)
        for before, sample in itertools.pairwise(samples):
            found[sample.broker_id, sample.window(60)]["missing"] += sample.sequence - before.sequence - 1
    for (broker_id, minute), row in found.items():
        yield {"broker_id": broker_id, "window_start": minute, **row}


def absences(day: Day) -> Iterator[Row]:
    """Yield each span in which a follower had no connection with the leader, by the leader's sidecar."""
    for samples in day.processes().values():
        open_spans: dict[int, Row] = {}
        for sample in samples:
            for line in sample.lines:
                if not isinstance(line, LinkLine) or line.side != "leader":
                    continue
                span = open_spans.get(line.peer)
                if span is not None:
                    span["seen_until"] = max(span["seen_until"], sample.ended)
                if line.away_seconds is None:
                    if span is not None:
                        span["end"] = sample.ended
                        yield open_spans.pop(line.peer)
                    continue
                start = sample.at(sample.end - line.away_seconds)
                if span is not None:
                    span["start"] = min(span["start"], start)
                else:
                    open_spans[line.peer] = {
                        "replica": line.peer,
                        "broker_id": sample.broker_id,
                        "start": start,
                        "end": None,
                        "seen_until": sample.ended,
                    }
        yield from open_spans.values()


def quarantine(day: Day) -> Iterator[Row]:
    """Yield each bad line, and each sample that is not whole. Of lines the text is as it came."""
    for (reason, file, text), count in Counter(day.bad).items():
        for _ in range(count):
            yield {"reason": reason, "file": file, "line": text, "lines": 1}
    for sample in day.partial:
        key = f'{{"broker_id":{sample.broker_id},"start_id":"{sample.start_id}","sequence":{sample.sequence}}}'
        yield {"reason": "partial_sample", "file": None, "line": key, "lines": sample.read}


def until(day: Day) -> datetime | None:
    """When the last sample ended."""
    return max((sample.ended for sample in day.whole), default=None)
