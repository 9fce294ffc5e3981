"""Every metric family of a sidecar but those of its process, with and without samples."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.admin.exposition import Family
from proxy.admin.limit_metrics import limit_families
from proxy.admin.metrics import ProcessStats, SideSource, families
from proxy.admin.tls_metrics import tls_families
from proxy.cluster.upstream_probe import UpstreamProbe
from proxy.limits.stage import LimitStage
from proxy.log import EventLog
from proxy.relay.stats import RelayStats
from proxy.tls.stats import TlsStats
from proxy.upstream_watch import UpstreamWatch
from quota.throttle import Throttle
from quota.topic_names import TopicNames


def every_family() -> Iterator[Family]:
    """Yield them."""
    sides = [SideSource(Throttle("leader", 1, lambda: 0.0), RelayStats("leader"))]
    yield from families(sides, ProcessStats("1.2.3", TopicNames(lambda: 0.0)))
    yield from limit_families(LimitStage(lambda: 0.0, EventLog()))
    yield from tls_families(TlsStats(), {})
    yield from UpstreamWatch([], UpstreamProbe([]), EventLog(), lambda: 0.0).families()
