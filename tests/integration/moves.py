# SPDX-License-Identifier: Apache-2.0
"""What the tests of throttled moves on real brokers share: clusters, throttle tables, moves, and what must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep
from typing import Any

from weir.lab.cluster import Cluster
from weir.lab.produce import LiveProducer, fill, read_numbers
from weir.lab.received import ReceivedBytes, Series
from weir.quota.figures import WINDOW_SECONDS

MB = 1_000_000
_FIRST_VERSION_OF_LEADER_EPOCHS = 5  # of Fetch: what replicas use from inter.broker.protocol.version 0.11 on
_LONG_POLLS_SECONDS = 1.5  # three of replica.fetch.wait.max.ms

LATE_WRITE_SECONDS = 0.05  # how much later than usual a follower on a busy machine may write what came
LEAST_MEAN = 0.6
"""How much of its quota a move has to use here: a busy machine keeps it from more. bench.moves has the tight bound."""

MESSAGE_BYTES = 10_350  # one message of `fill` in the log: 10,240 bytes and the headers of it and of a batch of its own
BATCH_BYTES = 3 * MESSAGE_BYTES  # below 0.11 uncompressed messages are single all the same
LONG = 50_000  # bytes of a batch of several


def roles(cluster: Cluster) -> tuple[int, int, int]:
    """Return (leader, peer, follower) for a test: the leader is the controller, so the others may fail freely."""
    leader = cluster.controller
    peer, follower = (broker_id for broker_id in cluster.broker_ids if broker_id != leader)
    return leader, peer, follower


def throttle(*topics: str, leader: int | None = None, follower: int | None = None) -> dict[str, Any]:
    """Return a throttle table: every replica of `topics`, with the rate (bytes/s) of each side that has one."""
    rates = {"leader": leader, "follower": follower}
    sides = [side for side, rate in rates.items() if rate is not None]
    return {
        **{f"{side}.replication.throttled.rate": rates[side] for side in sides},
        "topics": {topic: {f"{side}.replication.throttled.replicas": "*" for side in sides} for topic in topics},
    }


def filled(
    cluster: Cluster,
    topic: str,
    replicas: Sequence[int],
    size: int,
    partitions: int = 5,
    batch_bytes: int = BATCH_BYTES,
) -> str:
    """Create a topic of about `size` bytes, spread evenly over its partitions, each on `replicas`; return its name.

    A batch has a few messages: what only has to last is there sooner with `LONG`.
    """
    cluster.create_topic(topic, dict.fromkeys(range(partitions), replicas))
    sizes = dict.fromkeys(range(partitions), size // partitions)
    fill(cluster.bootstrap_servers, topic, sizes, batch_bytes=batch_bytes)
    return topic


@contextmanager
def moving(cluster: Cluster, topics: Sequence[str], to: Sequence[int], seconds: float = 60) -> Iterator[ReceivedBytes]:
    """Move every partition of `topics` to the brokers `to` while the block runs; then wait for the moves' end.

    What the last of `to` receives is sampled. No throttle but weir's may be set.
    """
    cluster.assert_no_native_throttle()
    partitions = sorted(cluster.admin.partitions(topics))
    with cluster.received_bytes(to[-1], partitions) as received:
        cluster.reassign(dict.fromkeys(partitions, to))
        yield received
        cluster.admin.wait_for_reassignments(seconds, poll_seconds=0.1)


@contextmanager
def throttled_move(
    cluster: Cluster, tables: Mapping[int, dict[str, Any]], *topics: str
) -> Iterator[dict[str, ReceivedBytes]]:
    """Move `topics` from broker 1 to broker 2, throttled by `tables` (by broker id) for as long as the block runs.

    What each topic receives is sampled. Then the rest moves without a throttle, and the replicas are compared.
    """
    for broker_id, table in tables.items():
        cluster.sidecars[broker_id].put_throttle(table)
    with ExitStack() as samplers:
        received = {
            topic: samplers.enter_context(cluster.received_bytes(2, sorted(cluster.admin.partitions([topic]))))
            for topic in topics
        }
        samplers.enter_context(moving(cluster, topics, [1, 2]))
        yield received
        for broker_id in tables:
            cluster.sidecars[broker_id].delete_throttle()
    assert_identical(cluster, topics, 1, 2)


def wait_for_probes(cluster: Cluster, count: int = 1) -> None:
    """Wait until broker 1's sidecar has sent so many more offset probes: something is behind, and is held back."""

    def probes() -> float:
        return cluster.sidecars[1].metrics().value("weir_offset_probes_total", side="leader")

    before = probes()
    cluster.wait_for("offset probes", lambda: probes() >= before + count, 40)


def clear(cluster: Cluster) -> None:
    """Remove every throttle and every topic: a test with the same brokers finds none."""
    for sidecar in cluster.sidecars.values():
        sidecar.delete_throttle()
    cluster.admin.wait_for_reassignments(60)
    for topic in {topic for topic, _ in cluster.admin.partitions()}:
        cluster.admin.delete_topic(topic)
    cluster.wait_for("the end of all topics", lambda: not cluster.admin.partitions(), 30)


def wait_for_bytes(cluster: Cluster, received: ReceivedBytes, size: int, seconds: float = 40) -> float:
    """Wait until more than `size` bytes are there; returns how long it took (s)."""
    return cluster.wait_for(f"more than {size} bytes", lambda: received.total > size, seconds)


def now(received: ReceivedBytes) -> float:
    """Return the present moment in a series' seconds: that of the newest sample, at most 0.1 s ago."""
    return received.series().times[-1]


def rate_between(series: Series, begin: float, end: float) -> float:
    """Return the bytes/s received between two moments (s)."""
    return (series.total_at(end) - series.total_at(begin)) / (end - begin)


def lead_from(cluster: Cluster, topics: Sequence[str], replicas: Sequence[int]) -> None:
    """Make the first of `replicas`, which has all of `topics` in sync, their leader."""
    partitions = sorted(cluster.admin.partitions(topics))
    if cluster.fetch_version is not None and cluster.fetch_version < _FIRST_VERSION_OF_LEADER_EPOCHS:
        # Before KIP-101 followers truncate to the high watermark that they know, and one that then leads has lost what
        # was acknowledged behind it: each has to hear the last one first, with its next fetch.
        sleep(_LONG_POLLS_SECONDS)
    cluster.reassign(dict.fromkeys(partitions, replicas))
    cluster.admin.elect_preferred_leaders(partitions)
    states = cluster.admin.partitions
    cluster.wait_for("new leaders", lambda: {s.leader for s in states(topics).values()} == {replicas[0]}, 30)


def assert_identical(cluster: Cluster, topics: Sequence[str], first: int, second: int) -> int:
    """Compare two brokers' replicas of whole topics byte for byte; returns their size in bytes."""
    return sum(cluster.compare_segments(*partition, first, second) for partition in cluster.admin.partitions(topics))


def assert_rate(series: Series, begin: float, end: float, quota: float) -> None:
    """Prove that a quota was in force between two moments (s): its rate was kept, and most of it was used.

    A budget that was idle has saved up to WINDOW_SECONDS of quota, which come at once. A busy machine keeps a move from
    all of its quota, so the lower bound is loose; it is high enough to tell one quota of a test from another.
    """
    rate = rate_between(series, begin, end)
    assert LEAST_MEAN * quota <= rate <= quota * (1.05 + WINDOW_SECONDS / (end - begin))


def assert_used(received: ReceivedBytes, rate: float, least: float, seconds: float = 4.0, windows: int = 5) -> float:
    """Prove that a rate is kept, and that at least this part of it is used once the machine lets it. Returns the part.

    No window of `seconds` may have more than the rate, and what was saved before it, which comes at 1.04 x. A busy
    machine keeps a move from its rate for seconds at a time, so one window of `windows` that has enough is enough.
    """
    for _ in range(windows):
        begin = now(received)
        sleep(seconds)
        used = rate_between(received.series(), begin, now(received)) / rate
        assert used <= 1.045
        if used >= least:
            break
    assert used >= least
    return used


def assert_keeps(series: Series, rate: int, least: float = LEAST_MEAN, batch_bytes: int = BATCH_BYTES) -> None:
    """Prove of a whole move that its mean and each of its seconds keep the quota.

    What an idle budget has saved comes at once, and in a short move counts for much. The mean has to reach
    `least` x rate. `batch_bytes` is the largest batch of what is moved. A follower that has no processor for a while
    writes in one second what came in two, which is no fault of a sidecar: a second may have more by what the file was
    behind the quota when it began, and by what a write that came LATE_WRITE_SECONDS late has brought into it.
    """
    begin, end = series.span
    assert least * rate <= series.mean_rate() <= rate * (1 + WINDOW_SECONDS / (end - begin))
    first = 0
    for moment, total in zip(series.times, series.totals, strict=True):
        while moment - series.begun[first] > 1.0:
            first += 1
        before = series.totals[first]
        late = max(0.0, rate * (series.begun[first] - begin) - (before - series.totals[0]))
        came, most = total - before, (1.05 + LATE_WRITE_SECONDS) * rate + batch_bytes + late
        assert came <= most, f"{came:,} bytes in the second up to {moment:.2f}, of {most:,.0f}"


def assert_read_once(cluster: Cluster, topic: str, producer: LiveProducer) -> None:
    """Read a producer's topic of one partition back: every record that was acknowledged is there exactly once."""
    assert producer.acked

    def wrong() -> dict[int, int]:
        read = Counter(read_numbers(cluster.bootstrap_servers, topic, [0]))
        return {acked.number: read[acked.number] for acked in producer.acked if read[acked.number] != 1}

    # A leader that was elected a moment ago shows its last records only when its follower has fetched from it.
    deadline = monotonic() + 30
    while wrong() and monotonic() < deadline:
        sleep(0.2)
    assert wrong() == {}


def assert_throttled(cluster: Cluster, broker_id: int, side: str) -> None:
    """Prove by a sidecar's metrics that it throttled fetches of the mode's version alone, and decoded all of them.

    That nothing went wrong in any sidecar of the cluster is checked with it.
    """
    metrics = cluster.sidecars[broker_id].metrics()
    fetches = metrics.value("weir_fetch_requests_total", side=side)
    assert fetches == metrics.value("weir_fetch_requests_total", side=side, api_version=cluster.fetch_version) > 0
    assert metrics.value("weir_replication_bytes_total", side=side, throttled="true") > 0
    waited = 0.0  # partitions or whole fetches, by whichever hop had no budget first
    for sidecar in cluster.sidecars.values():
        metrics = sidecar.metrics()
        waited += metrics.value("weir_partitions_left_out_total") + metrics.value("weir_fetches_held_total")
        for name in ("weir_passthrough_total", "weir_protocol_errors_total", "weir_internal_errors_total"):
            assert [sample for sample in metrics.samples(name) if sample.value] == []
    assert waited > 0
