# SPDX-License-Identifier: Apache-2.0
"""What the tests of exported samples share."""

from __future__ import annotations

import asyncio
from base64 import b85encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

from weir.proxy.export.sample import ExportStats, Sample
from weir.samples.lines import SampleKey
from weir.samples.schema import IntervalLine, encode_lines

START_ID = "20260131T230000Z-0badcafe"
BEGAN = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)


def sample(sequence: int, seconds: float = 0.0, padding: int = 0) -> Sample:
    """One that ended `seconds` after BEGAN; `padding` bytes more that no compression makes smaller."""
    ended_at = BEGAN + timedelta(seconds=seconds)
    key = SampleKey(1, START_ID, sequence, seconds - 10, seconds, ended_at.isoformat())
    version = b85encode(Random(sequence).randbytes(padding)).decode()
    line = IntervalLine(**key._asdict(), version=version, interval_seconds=10.0, partitions=0, links=0, quotas=0)
    return Sample(key, ended_at, [encode_lines([line])])


async def until(is_so: Callable[[], object], seconds: float = 5.0) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110 - what is waited for happens in a thread, a file or on a timer
            await asyncio.sleep(0.005)


def counted(stats: ExportStats) -> dict[object, int]:
    """What was counted at least once: written by sink, dropped by sink and reason."""
    return {key: count for key, count in (*stats.written.items(), *stats.dropped.items()) if count}
