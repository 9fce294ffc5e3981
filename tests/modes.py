# SPDX-License-Identifier: Apache-2.0
"""Which modes a test runs in: some always, the others where minutes are there."""

from collections.abc import Callable, Collection

import pytest

from weir.lab.modes import CORNERS, MODES, Mode


def every_mode(
    wanted: Callable[[Mode], bool] = lambda mode: True, always: Collection[Mode] = CORNERS
) -> list[pytest.ParameterSet]:
    """Return the modes that are `wanted` as parameters of a test, those beside `always` marked slow."""
    return [
        pytest.param(mode, id=name, marks=[] if mode in always else pytest.mark.slow)
        for name, mode in MODES.items()
        if wanted(mode)
    ]
