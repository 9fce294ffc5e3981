"""The mode in which the tests on real brokers run."""

import pytest

from lab.modes import CORNERS, Mode
from tests.modes import every_mode


@pytest.fixture(scope="module", params=every_mode(lambda mode: mode in CORNERS, always=CORNERS[:1]))
def mode(request: pytest.FixtureRequest) -> Mode:
    """Fetch v3; v12 and the newest too where minutes are there."""
    found: Mode = request.param
    return found
