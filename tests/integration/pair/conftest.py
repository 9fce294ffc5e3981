"""Two brokers that all tests of this folder share: one worker runs them (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.moves import clear
from weir.control.errors import ControlError
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import Mode


class SharedPair:
    """Two brokers with both hops between them, kept from one test to the next as long as their mode is wanted."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._mode: Mode | None = None
        self._cluster: Cluster | None = None

    def of(self, mode: Mode) -> Cluster:
        """Return the brokers; those of another mode are stopped."""
        if self._cluster is None or self._mode != mode:
            self.stop()
            self._cluster, self._mode = self._running.enter_context(mode.cluster(2, sidecars=True)), mode
        return self._cluster

    def stop(self) -> None:
        """Stop what runs; the next test gets new brokers."""
        self._cluster = None
        self._running.close()


@pytest.fixture(scope="package")
def shared_pair() -> Iterator[SharedPair]:
    """The brokers of this folder's tests, which end with the last of these."""
    shared = SharedPair()
    yield shared
    shared.stop()


@pytest.fixture
def pair(mode: Mode, shared_pair: SharedPair) -> Iterator[Cluster]:
    """Two shared brokers without a throttle or a topic; after the test their logs hold no new bad sign.

    Brokers that refuse to be cleared are replaced: a ZooKeeper controller does so now and then after a broker stood
    still.
    """
    cluster = shared_pair.of(mode)
    before = set(cluster.bad_signs())
    yield cluster
    try:
        assert set(cluster.bad_signs()) - before == set()
        clear(cluster)
    except (ControlError, LabError):
        shared_pair.stop()  # what is to be tested was; the next test has brokers of its own
    except BaseException:
        shared_pair.stop()
        raise
