# SPDX-License-Identifier: Apache-2.0
"""How soon a throttle set in Kafka is in force in every sidecar, and what following it costs: `python -m bench.follow`.

Three brokers with a sidecar each. From the moment at which Kafka has accepted a change, GET /v1/throttle of each
sidecar is asked until it shows the change: rates of all brokers, and the lists of a topic, in turns. What reading costs
is measured while nothing changes: CPU of the sidecars, and bytes that they exchange with the brokers.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator, Sequence

from kafka import KafkaAdminClient

from bench.processes import cpu_seconds
from bench.table import begin, parser, run
from weir.lab.cluster import Cluster
from weir.lab.errors import Timeout
from weir.lab.java import OPTIMIZED
from weir.lab.modes import MODES, NEWEST
from weir.lab.sidecar import Sidecar
from weir.quota.settings import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS

ASKED = "bench"  # the topic whose lists change
MOST_P99_SECONDS = 2.0
POLL_SECONDS = 0.01
GIVEN_UP_SECONDS = 30.0
SETTLE_SECONDS = 5.0
TOPICS_PER_REQUEST = 200
BROKERS = 3


def main() -> int:
    """Measure and print; 1 when a bound is missed."""
    options = parser("follow", "Measure how Kafka's own throttle is followed.")
    options.add_argument("--changes", type=int, default=50, help="at each number of topics (50)")
    options.add_argument("--topics", type=int, nargs="+", default=[10, 1000], help="how many, ascending (10 1000)")
    options.add_argument("--seconds", type=float, default=20.0, help="of each measurement of the costs (20)")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the brokers ({NEWEST.name})")
    chosen, report = begin(options)
    changes: list[Sequence[object]] = []
    costs: list[Sequence[object]] = []
    tables = {"cluster": {"follow_throttles": True}}
    with MODES[chosen.mode].cluster(
        BROKERS, sidecars=True, poll_isr=True, sidecar_tables=tables, jvm_flags=OPTIMIZED
    ) as cluster:
        cluster.create_topic(ASKED, {0: [1, 2]})
        known = 1
        for topics in chosen.topics:
            _create_topics(cluster, range(known, topics))
            known = topics
            for follows, shown in ((False, "no"), (True, "yes, nothing is set")):
                _restart(cluster, follows=follows)
                costs.append((topics, shown, *_costs(cluster, chosen.seconds)))
            waits = sorted(_waits(cluster, chosen.changes))
            p99 = waits[math.ceil(0.99 * len(waits)) - 1]
            changes.append((topics, len(waits), waits[len(waits) // 2], p99, waits[-1], os.getloadavg()[0]))
            report.bound(f"p99 at {topics} topics, s", p99, most=MOST_P99_SECONDS)
            costs.append((topics, "yes, rates and a list", *_costs(cluster, chosen.seconds)))
            cluster.admin.clear_native_throttle(cluster.broker_ids, [ASKED])
    title = f"{chosen.mode}: from a change in Kafka until it is in force in {BROKERS} sidecars"
    report.table(title, "topics | changes | p50, s .2 | p99, s .2 | max, s .2 | load of the machine .1", changes)
    columns = "topics | followed | of a core .4 | bytes/s | read, ms .1 | load of the machine .1"
    report.table("Reading, for each sidecar", columns, costs)
    return report.status


def _restart(cluster: Cluster, *, follows: bool) -> None:
    """Start the sidecars anew, following Kafka's throttle or not, and let them learn all topics."""
    words = {False: '"follow_throttles" = false', True: '"follow_throttles" = true'}
    for broker_id, sidecar in cluster.sidecars.items():
        cluster.kill_sidecar(broker_id)
        sidecar.config.write_text(sidecar.config.read_text().replace(words[not follows], words[follows]))
        cluster.start_sidecar(broker_id)
    time.sleep(SETTLE_SECONDS)


def _create_topics(cluster: Cluster, numbers: range) -> None:
    """Create topics of one partition without a list."""
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=60_000)
    try:
        for first in range(numbers.start, numbers.stop, TOPICS_PER_REQUEST):
            some = range(first, min(first + TOPICS_PER_REQUEST, numbers.stop))
            wanted = {f"other-{n}": {"assignments": {0: [1 + n % BROKERS]}} for n in some}
            client.create_topics(wanted, timeout_ms=60_000)
    finally:
        client.close()


def _waits(cluster: Cluster, changes: int) -> Iterator[float]:
    """Make changes at moments that have nothing to do with the sidecars' rounds; yield the seconds that each took."""
    moments = random.Random(1)
    for number in range(1, changes + 1):
        time.sleep(moments.uniform(0.0, 1.0))
        rate = 1_000_000 + 1_000 * number
        text = "*" if number % 4 == 1 else "0:1" if number % 4 == 3 else None
        if text is None:
            rates = {broker_id: {LEADER_RATE: rate, FOLLOWER_RATE: rate} for broker_id in cluster.broker_ids}
            cluster.admin.set_native_throttle(rates, {})
        else:
            cluster.admin.set_native_throttle({}, {ASKED: {LEADER_REPLICAS: text}})
        accepted = time.monotonic()
        left = list(cluster.sidecars.values())
        while left := [sidecar for sidecar in left if not _shows(sidecar, rate, text)]:
            if time.monotonic() - accepted > GIVEN_UP_SECONDS:
                raise Timeout(f"change {number} to be in force", GIVEN_UP_SECONDS)
            time.sleep(POLL_SECONDS)
        yield time.monotonic() - accepted


def _shows(sidecar: Sidecar, rate: int, text: str | None) -> bool:
    table = sidecar.throttle()
    if text is not None:
        return bool(table["topics"].get(ASKED, {}).get(LEADER_REPLICAS) == text)
    # of the rate a part is followed: this tells it from the others
    return any(abs(table.get(FOLLOWER_RATE, 0) - part / 100 * rate) <= 1 for part in range(90, 101))


def _costs(cluster: Cluster, seconds: float) -> tuple[float, float, float, float]:
    """Return what reading costs one sidecar: parts of a core, bytes/s, ms for one round; and the machine's load."""
    sidecars = list(cluster.sidecars.values())

    def so_far() -> tuple[float, float]:
        moved = [one.metrics().value("weir_cluster_poll_bytes_total", what="throttles") for one in sidecars]
        return sum(cpu_seconds(one.pid) for one in sidecars), sum(moved)

    core, moved = so_far()
    begin = time.monotonic()
    time.sleep(seconds)
    spent = (time.monotonic() - begin) * len(sidecars)
    core, moved = (after - before for after, before in zip(so_far(), (core, moved), strict=True))
    took = sum(one.metrics().value("weir_cluster_poll_seconds", what="throttles") for one in sidecars)
    return core / spent, moved / spent, 1000 * took / len(sidecars), os.getloadavg()[0]


if __name__ == "__main__":
    run(main)
