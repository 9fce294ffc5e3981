# SPDX-License-Identifier: Apache-2.0
"""Reads brokers' logs. A follower that refuses an answer says so only there, and only at INFO."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

BAD_SIGNS: dict[str, re.Pattern[str]] = {
    "invalid full fetch response": re.compile(r"invalid (?:full|incremental) fetch response", re.IGNORECASE),
    "Non-monotonic": re.compile(r"Non-monotonic", re.IGNORECASE),
    "marked as failed": re.compile(r"marked as failed", re.IGNORECASE),
    "Offset mismatch": re.compile(r"Offset mismatch", re.IGNORECASE),
    "Shrinking ISR": re.compile(r"Shrinking ISR", re.IGNORECASE),
    "Unexpected error": re.compile(
        r"Unexpected error occurred (?:while processing data|during fetching)", re.IGNORECASE
    ),
    "Truncating": re.compile(r"Truncating (?:to offset \d|.* below high watermark)", re.IGNORECASE),
}
"""What FetchSessionHandler, UnifiedLog, AbstractFetcherThread and Partition log of a replica in trouble, by name."""

_FENCED = re.compile(r"Partition (\S+) has an older epoch .* than the current leader\. Will await the new LeaderAndIsr")
_FAILED = re.compile(r"Partition (\S+) marked as failed")


class LogLine(NamedTuple):
    """A line worth showing; `sign` is a name from BAD_SIGNS or "ERROR"."""

    sign: str
    log: Path
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.log}:{self.number}: [{self.sign}] {self.text}"


def bad_signs(log: Path, allow: Collection[str] = ()) -> list[LogLine]:
    """Return the lines of a broker's log with a bad sign; `allow` names signs that the test itself provokes.

    One sign is ignored: a partition is marked as failed when its leader heard of a new leader epoch before the follower
    did. From Fetch v9 on this happens at the end of any move, and the follower goes on as soon as the controller has
    told it too.
    """
    if unknown := set(allow) - set(BAD_SIGNS):
        raise ValueError(f"{', '.join(sorted(unknown))}: no such sign; there are {', '.join(BAD_SIGNS)}")
    wanted = {name: pattern for name, pattern in BAD_SIGNS.items() if name not in allow}
    return [
        LogLine(name, log, number, line)
        for number, line in enumerate(_without_fencing(_lines(log)), 1)
        for name, pattern in wanted.items()
        if pattern.search(line)
    ]


def errors(log: Path) -> list[LogLine]:
    """Return the lines logged at ERROR or FATAL. Not all of them are bad, but all are worth showing."""
    return [
        LogLine("ERROR", log, number, line)
        for number, line in enumerate(_lines(log), 1)
        if re.search(r"(?:^|[\d.\]] )(?:ERROR|FATAL)\b", line)
    ]


def _without_fencing(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines; a line that marks a partition as failed because of an older epoch becomes empty."""
    fenced: set[str] = set()
    for line in lines:
        if older := _FENCED.search(line):
            fenced.add(older[1])
        elif (failed := _FAILED.search(line)) and failed[1] in fenced:
            fenced.remove(failed[1])
            yield ""
            continue
        yield line


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.exists() else []
