# SPDX-License-Identifier: Apache-2.0
"""Mutated frames of all that is read, at the cores of links: `make fuzz SECONDS=600 SEED=1`.

Each link ends with an error that is counted, or passes what came; no step takes long, and no bug is met. Half of the
time the seeds are the same each time, and half they are drawn: a failure names the one to run again.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time

import pytest

from tests.faults.fuzzed import Fuzzed

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
MOST_GROWTH = 100 * 2**20
"""Bytes that the process may grow by, once it has run for a while."""


@pytest.mark.parametrize("is_drawn", [False, True], ids=["same", "drawn"])
async def test_peers_that_send_mutated_frames_end_their_own_links_alone(is_drawn: bool) -> None:
    first = random.SystemRandom().randrange(10**9) if is_drawn else SEED
    fuzzed, began, number, warm = Fuzzed(), time.monotonic(), 0, 0
    while time.monotonic() - began < SECONDS / 2:
        try:
            fuzzed.run(first + number)
        except Exception as error:
            raise AssertionError(f"Run it again: FUZZ_SEED={first + number}, {error!r}") from error
        number += 1
        if not number % 100:
            await asyncio.sleep(0)
        if not warm and time.monotonic() - began > SECONDS / 8:
            warm = _most_memory()
    print(f"{number} links from seed {first} on: {dict(fuzzed.outcomes + fuzzed.seen)}")
    assert _most_memory() - warm < MOST_GROWTH
    assert fuzzed.outcomes["passed"] and fuzzed.outcomes["malformed_frame"] and min(fuzzed.seen.values())


def _most_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
