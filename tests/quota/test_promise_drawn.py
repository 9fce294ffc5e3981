# SPDX-License-Identifier: Apache-2.0
"""The same runs drawn by hypothesis, which makes one that fails as small as it can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.quota.model.draw import draw
from tests.quota.model.judge import judge

pytestmark = pytest.mark.long

T = TypeVar("T")


class Drawn:
    """Choices by hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, least: int, most: int) -> int:
        return self._data.draw(st.integers(least, most))

    def pick(self, options: Sequence[T]) -> T:
        return options[self._data.draw(st.integers(0, len(options) - 1))]

    def chance(self, percent: int) -> bool:
        return self._data.draw(st.integers(0, 99)) >= 100 - percent

    def apart(self, name: str = "") -> Drawn:
        return self


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_promise_of_a_drawn_run_holds(data: st.DataObject) -> None:
    scenario = draw(Drawn(data))
    assert not judge(scenario).violations, scenario
