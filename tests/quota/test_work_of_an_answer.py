# SPDX-License-Identifier: Apache-2.0
"""The work of an answer grows by what it brings, not by what waits: lines of `quota` are counted, and no seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import weir
from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.sessions import Key
from tests.quota.test_many_small import MB, SIDES, Catch, partitions, topics

pytestmark = pytest.mark.long

QUOTA = str(Path(weir.__file__).parent / "quota")
FETCHES = 10
FEW, MANY = 500, 2_000
IN_A_SESSION = 5.0
"""Lines for each partition that waits and does not come. A session's fetch names those alone that have changed."""
ALL_NAMED = 55.0
"""The same below v7, where each fetch names all, and each answer has an entry of all."""
TOPIC = "one topic"


class Lines:
    """How many lines of `quota` are run."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        """As `sys.settrace` asks."""
        return self._line if frame.f_code.co_filename.startswith(QUOTA) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        self.count += event == "line"
        return self._line


def lines(logs: dict[Key, Log], sides: str, version: int) -> float:
    """Lines of an answer, a second after the start."""
    catch = Catch(logs, SIDES[sides], 10 * MB, version)
    catch.follower.run(1.0)
    counted, before = Lines(), sys.gettrace()
    sys.settrace(counted.trace)
    try:
        for _ in range(FETCHES):
            catch.follower.fetch()
    finally:
        sys.settrace(before)
    return counted.count / FETCHES


@pytest.mark.parametrize("kind", [TOPIC, "topics"])
@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("sides", SIDES)
def test_work_of_an_answer_does_not_grow_by_what_waits(sides: str, version: int, kind: str) -> None:
    def waiting(count: int) -> dict[Key, Log]:
        return partitions(count, [30_000]) if kind == TOPIC else topics(count, *[10_000] * 30)

    more = lines(waiting(MANY), sides, version) - lines(waiting(FEW), sides, version)
    assert more / (MANY - FEW) <= (ALL_NAMED if version < 7 else IN_A_SESSION)
