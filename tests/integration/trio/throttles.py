# SPDX-License-Identifier: Apache-2.0
"""What is in force at the sidecars of three brokers that follow Kafka's throttles."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

from weir.lab.cluster import Cluster

PART: Final = 0.98
"""The part of Kafka's rates that the sidecars take."""


def on(*modes: str | ParameterSet) -> pytest.MarkDecorator:
    """Run a test in these modes, by name."""
    return pytest.mark.parametrize("mode", modes, indirect=True)


def in_force(cluster: Cluster, broker_id: int) -> dict[str, Any]:
    """Return a sidecar's throttle, whoever has set it."""
    table: dict[str, Any] = cluster.sidecars[broker_id].throttle()
    return {key: value for key, value in table.items() if key not in ("layers", "sources")}


def seconds_until(cluster: Cluster, what: str, tables: Mapping[int, dict[str, Any]]) -> float:
    """Wait until these are in force by broker id; returns the seconds (s) that it took."""
    found: dict[int, dict[str, Any]] = {}

    def is_so() -> bool:
        found.update({broker_id: in_force(cluster, broker_id) for broker_id in tables})
        return found == tables

    begin = monotonic()
    try:
        cluster.wait_for(what, is_so, 20, poll_seconds=0.02)
    finally:
        assert found == tables, found
    return monotonic() - begin


def nothing(cluster: Cluster) -> dict[int, dict[str, Any]]:
    """Return what is in force by broker id where nobody has set anything."""
    return {broker_id: {"topics": {}} for broker_id in cluster.broker_ids}
