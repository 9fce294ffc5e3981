# SPDX-License-Identifier: Apache-2.0
"""Foreign clients while something changes: a limit in the middle of a pause, and the sidecar's process."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.clients.checks import (
    arrived,
    check_rate,
    complaints,
    counted,
    every_client,
    filled,
    joins,
    limit,
    new_topic,
    run,
    written,
)
from tests.clients.drivers import LANGUAGES, Drivers, Outcome
from weir.lab.cluster import Cluster

pytestmark = pytest.mark.clients

BATCH: Final = 300
COUNT: Final = 3000  # records, where a connection breaks
AT_ONCE, LATE = 50, 0.25  # records in an answer of Kafka alone, and seconds until it is there
MOST_TWICE: Final = 2  # seconds of the limit: what is read again, as it was not committed
_OF_A_CONNECTION: Final = re.compile(
    r"connect|closed|EOF|refused|reset|broken|transport|NetworkException|Disconnect|unreachable|no leader|LEADER"
    r"|retr|dead|node|Connection|heartbeat|[Bb]roker|metadata|network data",
)
"""What clients say where a broker's connections break, as they do when Kafka itself starts anew."""

_GO_ON: Final = {
    "consume": {"librdkafka", "kafka-python", "aiokafka", "java"},
    "produce": {"franz-go", "librdkafka", "kafka-python", "java"},
}
"""Those that go on with what they had. Others join their group anew, send again, or give records up."""

both_roles = pytest.mark.parametrize("role", ["consume", "produce"])


def begun(
    together: ThreadPoolExecutor, cluster: Cluster, drivers: Drivers, client: str, role: str, topic: str, **job: int
) -> Future[Outcome]:
    """Start a client, and wait until its first records have passed."""
    drivers.command(client, {})  # so that it is built
    running = together.submit(run, cluster, drivers, client, role, topic, **job)
    cluster.wait_for("first records", lambda: running.done() or counted(cluster, topic) > 0, 60, 0.02)
    return running


def moved(cluster: Cluster, role: str, topic: str, outcome: Outcome) -> Outcome:
    """Return what was read, or what is in the log, with what the client complained of."""
    return outcome if role == "consume" else replace(written(cluster, topic), errors=outcome.errors)


@both_roles
@every_client
def test_a_limit_that_is_raised_and_lowered_in_a_pause(
    cluster: Cluster, drivers: Drivers, client: str, role: str
) -> None:
    """The first pause would take 6 s and has 0.3 s left when the limit is raised; the last ones take 2 s.

    Six requests in flight of 157 records (franz-go) then take 6.3 s: a Produce can be held for 7.5 s of its 10.
    """
    count = 9 * BATCH
    topic = filled(cluster, count, BATCH) if role == "consume" else new_topic(cluster)
    limit(cluster, topic, 50)
    with ThreadPoolExecutor(1) as together:
        job = {"count": count, "batch": BATCH, "fetch_bytes": 12_000, "in_flight": 5, "acks": -1}
        running = begun(together, cluster, drivers, client, role, topic, **job)
        time.sleep(2)
        raised_at = time.monotonic()
        limit(cluster, topic, 600)
        cluster.wait_for("the next records", lambda: running.done() or counted(cluster, topic) > BATCH, 60, 0.02)
        assert time.monotonic() - raised_at < 2
        cluster.wait_for("more records", lambda: running.done() or counted(cluster, topic) > 2 * BATCH, 60, 0.02)
        limit(cluster, topic, 150)
        before = counted(cluster, topic)
        outcome = moved(cluster, role, topic, running.result())
    assert complaints(outcome) == []
    assert (outcome.records, outcome.distinct) == (count, count)
    times = sorted(map(int, outcome.arrivals))
    passed = accumulate(outcome.arrivals[str(at)] for at in times)
    check_rate(since(outcome, next(at for at, so_far in zip(times, passed, strict=True) if so_far > before)), 150, 150)


@pytest.mark.parametrize(
    ("client", "role"),
    [
        (client, role)
        for client in LANGUAGES
        for role in _GO_ON
        if (client, role) != ("@platformatic/kafka", "consume")  # it gives up within seconds
    ],
)
def test_a_sidecar_that_is_killed_and_started_anew(cluster: Cluster, drivers: Drivers, client: str, role: str) -> None:
    """To a client that is a broker whose connections break: nothing that it was told of is lost, or comes twice.

    A client that does not simply go on complains of no more than where connections to Kafka alone break, and joins its
    group anew once.
    """
    per_second, sidecar = 200, cluster.sidecars[1]
    topic = filled(cluster, COUNT, 25) if role == "consume" else new_topic(cluster)
    plain = sidecar.config.read_text()
    sidecar.config.write_text(
        f'{plain}\n[[limits.client]]\nclient_id = "{topic}"\n"record.rate.limit" = {per_second}\n'
    )
    limit(cluster, topic, per_second)
    try:
        with ThreadPoolExecutor(1) as together:
            running = begun(together, cluster, drivers, client, role, topic, count=COUNT, in_flight=5, seconds=120)
            cluster.wait_for("a third", lambda: running.done() or counted(cluster, topic) > COUNT / 3, 60, 0.05)
            killed_at = time.monotonic()
            cluster.kill_sidecar(1)
            cluster.start_sidecar(1)
            away = time.monotonic() - killed_at
            outcome = moved(cluster, role, topic, running.result())
    finally:
        sidecar.config.write_text(plain)
    acknowledged = running.result().distinct if role == "produce" else COUNT
    assert outcome.distinct >= acknowledged
    if client in _GO_ON[role]:
        assert [error for error in complaints(outcome) if not _OF_A_CONNECTION.search(error)] == []
        assert (outcome.records, outcome.distinct) == (COUNT, COUNT)
        assert joins(cluster, topic) == (role == "consume")
    else:
        alone, joined = of_kafka_alone(cluster, drivers, client, role, away)
        assert [error for error in complaints(outcome, alone) if not _OF_A_CONNECTION.search(error)] == []
        assert outcome.records - outcome.distinct <= max(alone.records - alone.distinct, MOST_TWICE * per_second)
        assert joins(cluster, topic) <= max(joined, 2 * (role == "consume"))
    times = sorted(map(int, outcome.arrivals))
    _, after_the_break = max(pairwise(times), key=lambda pair: pair[1] - pair[0])
    check_rate(since(outcome, after_the_break), per_second, 25)


def of_kafka_alone(cluster: Cluster, drivers: Drivers, client: str, role: str, away: float) -> tuple[Outcome, int]:
    """Have the broker `away` for so many seconds, without a sidecar. Returns also how often the client joined."""
    topic = filled(cluster, COUNT, 25) if role == "consume" else new_topic(cluster)
    cluster.kill_sidecar(1)
    link = slow_link(cluster)
    try:
        with ThreadPoolExecutor(1) as together:
            running = together.submit(run, cluster, drivers, client, role, topic, count=COUNT, in_flight=5, seconds=120)
            if role == "produce":
                cluster.wait_for("a third", lambda: running.done() or arrived(cluster, topic, COUNT // 3), 60, 0.05)
            else:
                cluster.wait_for("a member", lambda: running.done() or joins(cluster, topic) > 0, 60, 0.05)
                time.sleep(COUNT / 3 / AT_ONCE * LATE)
            cut(link)
            time.sleep(away)
            link = slow_link(cluster)
            outcome = moved(cluster, role, topic, running.result())
    finally:
        cut(link)
        cluster.start_sidecar(1)
    return outcome, joins(cluster, topic)


def slow_link(cluster: Cluster) -> subprocess.Popen[str]:
    """Start a link to the broker in place of its sidecar; about AT_ONCE records come in LATE seconds."""
    place = cluster.places[1]
    command = [sys.executable, "-m", "tests.clients.slow_link", str(place.advertised), str(place.listener), str(LATE)]
    link = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert link.stdout is not None
    assert link.stdout.readline() == "up\n"
    return link


def cut(link: subprocess.Popen[str]) -> None:
    """Break all connections, and have the port refuse new ones."""
    link.kill()
    link.communicate()


def since(outcome: Outcome, begin: int) -> Outcome:
    """Return what came from then on (hundredths of a second)."""
    return replace(outcome, arrivals={at: some for at, some in outcome.arrivals.items() if int(at) >= begin})
