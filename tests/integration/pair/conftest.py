# SPDX-License-Identifier: Apache-2.0
"""Two brokers that all tests of this folder share: one worker runs them (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.shared import SharedCluster
from weir.lab.cluster import Cluster
from weir.lab.modes import Mode


@pytest.fixture(scope="package")
def shared_pair() -> Iterator[SharedCluster]:
    """The brokers of this folder's tests, with both hops between them, which end with the last of these."""
    shared = SharedCluster(lambda mode: mode.cluster(2, sidecars=True))
    yield shared
    shared.stop()


@pytest.fixture
def pair(mode: Mode, shared_pair: SharedCluster) -> Iterator[Cluster]:
    """Two shared brokers without a throttle or a topic."""
    with shared_pair.lent(mode) as cluster:
        yield cluster
