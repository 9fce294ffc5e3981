"""Which modes a test runs in: the corners always, the others where minutes are there."""

from collections.abc import Callable

import pytest

from lab.modes import CORNERS, MODES, Mode


def every_mode(wanted: Callable[[Mode], bool] = lambda mode: True) -> list[pytest.ParameterSet]:
    """Return the modes that are `wanted` as parameters of a test, those beside the corners marked slow."""
    return [
        pytest.param(mode, id=name, marks=[] if mode in CORNERS else pytest.mark.slow)
        for name, mode in MODES.items()
        if wanted(mode)
    ]
