# SPDX-License-Identifier: Apache-2.0
"""Three brokers that all tests of this folder share: one worker runs them. Their sidecars follow Kafka's throttles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.shared import SharedCluster
from tests.integration.trio.throttles import PART, nothing, seconds_until
from weir.lab.cluster import Cluster
from weir.lab.modes import MODES, Mode


@pytest.fixture(scope="package")
def shared_trio() -> Iterator[SharedCluster]:
    """The brokers of this folder's tests, which end with the last of these."""
    followed: dict[str, dict[str, Any]] = {"cluster": {"follow_throttles": True, "followed_part": PART}}
    shared = SharedCluster(lambda mode: mode.cluster(3, sidecars=True, poll_isr=True, sidecar_tables=followed))
    yield shared
    shared.stop()


@pytest.fixture(scope="package")
def mode(request: pytest.FixtureRequest) -> Mode:
    """The mode that a test names; pytest runs those of one mode together."""
    return MODES[request.param]


@pytest.fixture
def cluster(mode: Mode, shared_trio: SharedCluster) -> Iterator[Cluster]:
    """Three shared brokers: there is no topic, and no throttle of anybody's, neither before a test nor after it."""
    with shared_trio.lent(mode) as cluster:
        _forget_hands(cluster)
        yield cluster
        _forget_hands(cluster)
        cluster.admin.clear_native_throttle(cluster.broker_ids, {topic for topic, _ in cluster.admin.partitions()})
        cluster.assert_no_native_throttle()
        seconds_until(cluster, "no throttle", nothing(cluster))


def _forget_hands(cluster: Cluster) -> None:
    """Remove what was set by hand, and that something was removed by hand: that would hide what Kafka has."""
    for sidecar in cluster.sidecars.values():
        assert sidecar.http("DELETE", "/v1/throttle?source=http")[0] < 300
