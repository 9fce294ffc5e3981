# SPDX-License-Identifier: Apache-2.0
"""Clients that others wrote, with and without a limit: the rate is kept, each record comes once, nothing complains."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from tests.clients.checks import (
    LEAST,
    MOST,
    arrived,
    check_rate,
    complaints,
    every_client,
    filled,
    joins,
    limit,
    lost,
    new_topic,
    run,
    start_at_the_begin,
    written,
)
from tests.clients.drivers import LANGUAGES, Drivers, Outcome
from weir.lab.cluster import Cluster
from weir.limits.holds import MOST_OWED_SECONDS

pytestmark = pytest.mark.clients


def consumed(cluster: Cluster, drivers: Drivers, client: str, role: str = "consume", **more: Any) -> None:
    """Read a topic without a limit, then one with it."""
    per_second, batch, seconds = more.pop("limit"), more.pop("batch"), more.pop("seconds")
    count = int(per_second * seconds)
    free_topic = filled(cluster, count, batch)
    limit(cluster, None)
    free = run(cluster, drivers, client, role, free_topic, count, **more)
    assert (free.records, free.distinct) == (count, count)
    topic = filled(cluster, count, batch)
    limit(cluster, topic, per_second)
    limited = run(cluster, drivers, client, role, topic, count, seconds=3 * seconds + 30, **more)
    assert complaints(limited, free) == []
    assert (limited.records, limited.distinct) == (count, count)
    check_rate(limited, per_second, batch)
    assert joins(cluster, topic) <= max(1, joins(cluster, free_topic))


@every_client
def test_consumer_of_small_answers(cluster: Cluster, drivers: Drivers, client: str) -> None:
    consumed(cluster, drivers, client, limit=500, batch=25, seconds=6)


@every_client
def test_consumer_of_answers_worth_seconds_of_the_limit(cluster: Cluster, drivers: Drivers, client: str) -> None:
    """Each answer is followed by a pause of 3 s."""
    consumed(cluster, drivers, client, limit=100, batch=300, seconds=15, fetch_bytes=12_000)


def produced(cluster: Cluster, drivers: Drivers, client: str, per_second: int, count: int, **job: Any) -> Outcome:
    """Write without a limit, then with it; each record has to be in the log once. Returns what is in the log."""
    outcomes = []
    for some in (None, per_second):
        topic = new_topic(cluster)
        limit(cluster, topic if some else None, per_second)
        outcomes.append(run(cluster, drivers, client, "produce", topic, count, **job))
        if job.get("acks") == 0:
            cluster.wait_for("every record", partial(arrived, cluster, topic, count), 60)
    free, limited = outcomes
    found = written(cluster, topic)
    assert complaints(limited, free) == []
    assert (found.distinct, found.records) == (count, count)
    return found


@every_client
def test_producer_of_small_batches(cluster: Cluster, drivers: Drivers, client: str) -> None:
    limited = produced(cluster, drivers, client, 250, 1500)
    check_rate(limited, 250, 25)


@every_client
def test_producer_of_batches_worth_seconds_of_the_limit(cluster: Cluster, drivers: Drivers, client: str) -> None:
    limited = produced(cluster, drivers, client, 100, 1500, batch=300, acks=1)
    check_rate(limited, 100, 300)


@every_client
def test_consumer_of_answers_worth_more_than_ten_seconds(cluster: Cluster, drivers: Drivers, client: str) -> None:
    """Clients without a session are answered, empty, many times in each pause of 12 s; those in one begin it anew."""
    consumed(cluster, drivers, client, limit=50, batch=600, seconds=36, fetch_bytes=24_000)


@every_client
def test_producer_of_batches_worth_more_than_ten_seconds(cluster: Cluster, drivers: Drivers, client: str) -> None:
    """The second one is held, or told and held, for 12 s. Where the machine is slow, the first has fewer records.

    There may be a third then, which has to go 20 s after it was sent.
    """
    limited = produced(cluster, drivers, client, 50, 1200, batch=600, acks=1)
    arrivals = {int(at): count for at, count in limited.arrivals.items()}
    first = min(arrivals)
    second = min(at for at in arrivals if at > first + 100)
    seconds = (second - first) / 100
    assert 50 * LEAST * seconds <= sum(arrivals[at] for at in arrivals if at < second) <= 50 * MOST * seconds


@pytest.mark.parametrize("client", [one for one in LANGUAGES if one != "rskafka"])  # it waits for all
def test_what_a_producer_sent_without_acks_arrives(cluster: Cluster, drivers: Drivers, client: str) -> None:
    begin = time.monotonic()
    produced(cluster, drivers, client, 250, 1250, acks=0)
    assert time.monotonic() - begin > 0.9 * 1250 / 250


def test_sixty_sends_at_once(cluster: Cluster, drivers: Drivers) -> None:
    """They take 36 s, and KafkaJS gives up what it has sent after 30: its sixth waits until one is answered."""
    produced(cluster, drivers, "kafkajs", 100, 3600, batch=60, in_flight=5, seconds=90)


@pytest.mark.parametrize(("per_second", "batch", "at_once", "count"), [(200, 50, 100, 2000), (100, 800, 800, 3200)])
@pytest.mark.parametrize("client", ["franz-go", "java"])
def test_share_group(
    cluster: Cluster, drivers: Drivers, client: str, per_second: int, batch: int, at_once: int, count: int
) -> None:
    """Its members fetch with ShareFetch (KIP-932). Answers worth 8 s: what they acknowledge goes on after 5 s."""
    limited = []
    for some in (None, per_second):
        topic = filled(cluster, count, batch)
        start_at_the_begin(cluster, topic)
        limit(cluster, topic if some else None, per_second)
        limited.append(run(cluster, drivers, client, "share", topic, count, batch=at_once))
    free, held = limited
    assert complaints(held, free) == []
    assert (held.records, held.distinct) == (count, count)
    check_rate(held, per_second, at_once)


@pytest.mark.parametrize("client", ["franz-go", "sarama", "librdkafka", "java"])
def test_transactions(cluster: Cluster, drivers: Drivers, client: str) -> None:
    """Every second one is aborted: half of the limit is committed, and comes, once."""
    topic, per_second, count = new_topic(cluster), 400, 2400
    limit(cluster, topic, per_second)
    sent = run(cluster, drivers, client, "transact", topic, count, batch=100)
    assert complaints(sent) == []
    found = written(cluster, topic)
    assert (found.distinct, found.records) == (count / 2, count / 2)
    check_rate(found, per_second / 2, 100)
    held = run(cluster, drivers, client, "consume", topic, count // 2, fetch_bytes=3500)
    assert complaints(held) == []
    assert (held.records, held.distinct) == (count / 2, count / 2)
    check_rate(held, per_second / 2, 100)


@every_client
def test_many_connections_of_one_id(cluster: Cluster, drivers: Drivers, client: str) -> None:
    """24 producers stand in one line, each with requests that wait behind one another."""
    limited = produced(cluster, drivers, client, 600, 24 * 25 * 10, producers=24, in_flight=5)
    check_rate(limited, 600, 25)


@pytest.mark.parametrize(
    ("client", "per_second"), [("kafka-go", 100), ("sarama", 100), ("kafka-go", 50), ("aiokafka", 50)]
)
def test_a_line_that_takes_seconds(cluster: Cluster, drivers: Drivers, client: str, per_second: int) -> None:
    """6 s or 12 s for 24 producers, each of which waits for one answer."""
    limited = produced(cluster, drivers, client, per_second, 24 * 25 * 4, producers=24, seconds=90)
    check_rate(limited, per_second, 25)


@pytest.mark.parametrize(("batch", "count", "most"), [(900, 1800, 5.5), (200, 4000, 1.5)])
def test_group_keeps_its_member_beside_a_producer_that_is_held(
    cluster: Cluster, drivers: Drivers, batch: int, count: int, most: float
) -> None:
    """sarama sends nothing while it waits for the answer to a Fetch, and that one stands behind a held Produce.

    Two requests of 9 s: the second one gives way when its client owes 5 s. Many of 2 s: each gives way. A heartbeat
    waits for so long at `most` (seconds), and a member is removed after 10 s without one.
    """
    topic = new_topic(cluster)
    limit(cluster, topic, 100)
    reads = new_topic(cluster)
    outcome = run(cluster, drivers, "sarama", "produce", topic, count, batch=batch, acks=1, reads=reads)
    assert complaints(outcome) == []
    found = written(cluster, topic)
    assert (found.distinct, found.records) == (count, count)
    assert (joins(cluster, topic), lost(cluster, topic)) == (1, 0)
    waits = sorted(answered - sent for sent, answered in outcome.heartbeats)
    print(f"heartbeats: {len(waits)}, the last of them waited {waits[-3:]} s")
    assert waits[-1] < most
    times = sorted(map(int, found.arrivals))
    assert (times[-1] - times[0]) / 100 >= (count - 2 * batch) / 100 - MOST_OWED_SECONDS


def test_producer_that_asks_for_metadata_always_keeps_its_limit(cluster: Cluster, drivers: Drivers) -> None:
    """Each request gives way to what stands behind it, as long as the client owes 5 s at most."""
    found = produced(cluster, drivers, "java", 100, 2000, batch=50, metadata_ms=200)
    times = sorted(map(int, found.arrivals))
    assert (times[-1] - times[0]) / 100 >= (2000 - 2 * 50) / 100 - MOST_OWED_SECONDS
