# SPDX-License-Identifier: Apache-2.0
"""Every metric family of a sidecar but those of its process, with and without samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weir.proxy.admin.exposition import Family
from weir.proxy.admin.fleet import Target
from weir.proxy.admin.limit_metrics import limit_families
from weir.proxy.admin.metrics import ProcessStats, families
from weir.proxy.admin.tls_metrics import tls_families
from weir.proxy.admin.troubles import trouble_families
from weir.proxy.cluster.poll_stats import PollStats, poll_families
from weir.proxy.limits.stage import LimitStage
from weir.proxy.log import EventLog
from weir.proxy.relay.side import Side
from weir.proxy.relay.stats import RelayStats
from weir.proxy.shares.exchange import Exchange, share_families
from weir.proxy.tls.results import TlsStats
from weir.proxy.tls_workers.pool import TlsWorkers
from weir.proxy.upstream_watch import UpstreamWatch
from weir.quota.throttle import Throttle
from weir.quota.topic_names import TopicNames


def every_family() -> Iterator[Family]:
    """Yield them."""
    sides = [Side(Throttle("leader", 1, lambda: 0.0), RelayStats("leader"), EventLog())]
    yield from families(sides, ProcessStats("1.2.3", TopicNames(lambda: 0.0), is_captured=True))
    yield from poll_families(PollStats(), 0.0)
    yield from share_families(Exchange(1, (), _nobody, EventLog()))
    yield from limit_families(LimitStage(lambda: 0.0, EventLog()))
    yield from trouble_families({}, {"limits": "", "quotas": ""})
    yield from tls_families(TlsStats(), {}, TlsWorkers(1, (), EventLog()))
    yield from UpstreamWatch([], [], EventLog()).families()


async def _nobody() -> Sequence[Target]:
    return ()
