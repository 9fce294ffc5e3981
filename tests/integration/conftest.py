"""The mode in which the tests on real brokers run, and two brokers that tests share."""

from collections.abc import Iterator

import pytest

from lab.cluster import Cluster
from lab.modes import CORNERS, Mode
from tests.integration.moves import clear
from tests.modes import every_mode


@pytest.fixture(scope="module", params=every_mode(lambda mode: mode in CORNERS, always=CORNERS[:1]))
def mode(request: pytest.FixtureRequest) -> Mode:
    """Fetch v3; v12 and the newest too where minutes are there."""
    found: Mode = request.param
    return found


@pytest.fixture(scope="module")
def running_pair(mode: Mode) -> Iterator[Cluster]:
    """Two brokers of the module's, and both hops between them."""
    with mode.cluster(2, sidecars=True) as cluster:
        yield cluster


@pytest.fixture
def pair(running_pair: Cluster) -> Iterator[Cluster]:
    """The module's two brokers without a throttle or a topic; afterwards their logs hold no new bad sign."""
    before = set(running_pair.bad_signs())
    yield running_pair
    clear(running_pair)
    assert set(running_pair.bad_signs()) - before == set()
