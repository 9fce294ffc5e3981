# SPDX-License-Identifier: Apache-2.0
"""The mode in which the tests on real brokers run."""

from __future__ import annotations

import pytest

from tests.modes import every_mode
from weir.lab.modes import CORNERS, Mode


@pytest.fixture(scope="module", params=every_mode(lambda mode: mode in CORNERS, always=CORNERS[:1]))
def mode(request: pytest.FixtureRequest) -> Mode:
    """Fetch v3; v12 and the newest too where minutes are there."""
    found: Mode = request.param
    return found
