# SPDX-License-Identifier: Apache-2.0
"""Every alert on a real cluster: it fires from what real sidecars say in its situation, and is silent from before.

Each test makes a situation, and scrapes both sidecars before and in it. Prometheus' own rule engine is then given
the two scrapes as if each had been said for hours (`tests/deploy/scrapes.py`): no alert may fire from the first, and
those named, no others, from the second. All of it is real but for three things. A throttle is not left in force for
a day: its gauge of seconds goes on to grow as it did between two scrapes. A Fetch of a version that no Kafka has, and
one of a topic id that no cluster has, are written by the test, to a real sidecar before a real broker. The limiter
that fails is the test's own.
"""

from __future__ import annotations

import http.client
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.protocol.consumer import FetchRequest

from tests.deploy.files import ALERTS, needs
from tests.deploy.scrapes import Fired, Scrape, assert_fires, scrape
from tests.fakes.pki import Authority
from tests.integration.failing_limiter import FailingLimiter
from tests.integration.moves import LONG, MB, filled, moving, throttle
from tests.protocol.wire import request
from weir.lab.cluster import Cluster
from weir.lab.errors import Timeout
from weir.lab.modes import NEWEST
from weir.lab.produce import LiveProducer
from weir.lab.settings import toml_text

pytestmark = [pytest.mark.integration, needs("promtool")]

LAG_LIMIT_SECONDS = 3  # replica.lag.time.max.ms of brokers and sidecars: nobody has to wait for 30 s
LIMITED = "connector-consumer-s3-0"
FAILING = f"{FailingLimiter.__module__}.{FailingLimiter.__qualname__}"
LEADER = ('broker="1"', 'side="leader"')
DROPPED, EXPIRY = "weir_samples_dropped_total", "weir_tls_certificate_expiry_seconds"
TLS_BEGINS = bytes.fromhex("16 0301 0200 01 0001fc 0303")


class Alerts:
    """Two brokers with their sidecars, and the alerts that fired so far."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self.fired: set[str] = set()

    def scraped(self) -> dict[str, float]:
        """What both sidecars say now, but how busy the tests' own machine keeps them."""
        said = scrape(self.cluster.sidecars)
        return {name: 0.0 if 'what="saturated"' in name else value for name, value in said.items()}

    def calm(self) -> dict[str, float]:
        """What both say as soon as both are ready and reach each other, and no replica lags."""

        def is_calm(said: Scrape) -> bool:
            up = [*values(said, "weir_ready"), *values(said, "weir_upstream_up")]
            return all(up) and max(values(said, "weir_replica_lag_seconds")) < LAG_LIMIT_SECONDS / 3

        return self.said(is_calm, "a calm cluster")

    def said(self, is_so: Callable[[Scrape], bool], what: str) -> dict[str, float]:
        """What both say as soon as it is as it should be."""
        found: list[dict[str, float]] = []

        def look() -> bool:
            found[:] = [self.scraped()]
            return is_so(found[0])

        try:
            self.cluster.wait_for(what, look, 60)
        except Timeout:
            pytest.fail(f"there was never {what}: {[one for one in found[0].items() if one[1]]}")
        return found[0]

    def assert_fires(self, before: Scrape, after: Scrape, fired: Fired, growing: str = "", minutes: int = 90) -> None:
        """Assert that none fires from `before`, and these and no others from `after`."""
        assert_fires(self._folder, before, after, fired, growing=growing, minutes=minutes)
        self.fired |= {name for name, _ in fired}

    @contextmanager
    def throttled(self, *topics: str, rate: int) -> Iterator[None]:
        """A throttle on broker 1's side as a leader, set by hand."""
        sidecar = self.cluster.sidecars[1]
        sidecar.put_throttle(throttle(*topics, leader=rate))
        try:
            yield
        finally:
            sidecar.delete_throttle()

    @contextmanager
    def sent(self, data: bytes) -> Iterator[None]:
        """A connection to broker 1's ingress on which something came."""
        host, port = self.cluster.places[1].advertised_address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(data)
            yield

    @contextmanager
    def consuming(self, client_id: str, topic: str, **limits: object) -> Iterator[None]:
        """A client that reads a topic through broker 1's ingress, and is limited."""
        sidecar = self.cluster.sidecars[1]
        assert sidecar.http("PUT", "/v1/limits", {"client": [{"client_id": client_id, **limits}]})[0] == 200
        settings = {"bootstrap.servers": self.cluster.places[1].advertised_address, "group.id": "unused"}
        consumer = Consumer(settings | {"client.id": client_id, "fetch.wait.max.ms": 10})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            consumer.poll(0.1)  # it goes on to fetch by itself
            yield
        finally:
            consumer.close()
            assert sidecar.http("DELETE", "/v1/limits?source=http")[0] == 200


@pytest.fixture(scope="module")
def alerts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alerts]:
    lag = LAG_LIMIT_SECONDS * 1000
    with NEWEST.cluster(
        brokers=2,
        sidecars=True,
        # over HTTP only limiters that the file names are known
        sidecar_tables={
            "quota": {"replica_lag_time_max_ms": lag},
            "limits": {"client": [{"client_id": "nobody", "rate.limiters": [FAILING]}]},
        },
        properties={"replica.lag.time.max.ms": lag},
    ) as cluster:
        filled(cluster, "calm", [1, 2], MB, partitions=1)
        yield Alerts(cluster, tmp_path_factory.mktemp("rules"))


def test_stuck_move_and_a_throttle_that_was_forgotten(alerts: Alerts) -> None:
    """Both stand on the same situation: a throttle by hand that lets a move make no progress."""
    cluster = alerts.cluster
    topic = filled(cluster, "stuck", [1], MB)
    before = alerts.calm()
    with moving(cluster, [topic], [1, 2]), alerts.throttled(topic, rate=0):

        def is_stuck(said: Scrape) -> bool:
            lags = values(said, "weir_replica_lag_seconds", 'side="leader"', f'topic="{topic}"')
            is_late = len(lags) == 5 and min(lags) > LAG_LIMIT_SECONDS
            return is_late and sum(values(said, "weir_replica_lag_messages_sum", *LEADER)) > 0

        after = alerts.said(is_stuck, "a stuck move")
        alerts.assert_fires(before, after, {("WeirMoveStuck", "1")})
        gauge = "weir_throttle_set_by_hand_seconds"
        assert 0 < sum(values(after, gauge, *LEADER)) < sum(values(alerts.scraped(), gauge, *LEADER))
        both: Fired = {("WeirMoveStuck", "1"), ("WeirThrottleInForceForLong", "1")}
        alerts.assert_fires(before, after, both, growing=gauge, minutes=25 * 60)


def test_more_than_the_quota_of_replicas_in_sync(alerts: Alerts) -> None:
    cluster, rate = alerts.cluster, 100_000
    topic = filled(cluster, "busy", [1, 2], MB, partitions=1)
    before = alerts.calm()
    with (
        alerts.throttled(topic, rate=rate),
        LiveProducer(cluster.bootstrap_servers, topic, [0], rate=50, message_bytes=10_240),
    ):
        name = "weir_throttled_rate_bytes_per_second"
        after = alerts.said(lambda said: sum(values(said, name, *LEADER)) > 2 * rate, "twice the quota")
    alerts.assert_fires(before, after, {("WeirQuotaOverrun", "1")})


def test_replicas_that_pass_in_no_list(alerts: Alerts) -> None:
    topic = filled(alerts.cluster, "unlisted", [1], 120 * MB, batch_bytes=LONG)
    before = alerts.calm()
    with alerts.throttled("calm", rate=MB):
        with moving(alerts.cluster, [topic], [1, 2]):
            pass
        after = alerts.calm()
    alerts.assert_fires(before, after, {("WeirUnthrottledBesideThrottle", "1")})


def test_connections_that_are_not_understood(alerts: Alerts) -> None:
    before = alerts.calm()
    with alerts.sent(TLS_BEGINS):
        opened = alerts.said(lambda said: any(values(said, "weir_opaque_connections", 'reason="tls"')), "TLS")
        alerts.assert_fires(before, opened, set())  # nothing is throttled, so nothing escapes
        with alerts.throttled("calm", rate=MB):
            alerts.assert_fires(before, alerts.scraped(), {("WeirOpaqueConnections", "1")})


def test_topic_id_without_a_name(alerts: Alerts) -> None:
    before = alerts.calm()
    topic = FetchRequest.FetchTopic
    asked = FetchRequest(
        version=13,
        replica_id=2,
        max_wait_ms=0,
        min_bytes=1,
        topics=[topic(topic_id=UUID(int=2**127 + 7), partitions=[topic.FetchPartition(partition=0)])],
    )
    asked.with_header(correlation_id=1, client_id="broker-2-fetcher-0")
    data = bytes(asked.encode(version=13, header=True, framed=True))
    with alerts.throttled("calm", rate=MB), alerts.sent(data):
        after = alerts.said(lambda said: any(values(said, "weir_topic_ids_unknown")), "an unknown id")
    alerts.assert_fires(before, after, {("WeirTopicIdsUnknown", "1")})


def test_fetch_of_an_unknown_version(alerts: Alerts) -> None:
    before = alerts.calm()
    with alerts.sent(request(1, 99, 1, bytes(60), client_id=b"broker-2-fetcher-0")):
        after = alerts.said(
            lambda said: any(values(said, "weir_passthrough_total", 'reason="fetch_version"')), "an unknown version"
        )
    alerts.assert_fires(before, after, {("WeirFetchVersionUnknown", "1")})


def test_client_that_is_held_all_the_time(alerts: Alerts) -> None:
    before = alerts.calm()
    with alerts.consuming(LIMITED, "unlisted", **{"record.rate.limit": 1}):
        after = alerts.said(
            lambda said: max(values(said, "weir_task_throttled_ratio"), default=0) > 0.95, "a held client"
        )
    alerts.assert_fires(before, after, {("WeirClientHeldForLong", ""), ("WeirUnlikeSettings", "")})


def test_limiter_that_fails(alerts: Alerts) -> None:
    before = alerts.calm()
    with alerts.consuming("other", "unlisted", **{"rate.limiters": [FAILING]}):
        after = alerts.said(lambda said: any(values(said, "weir_limiters_disabled_total")), "a disabled limiter")
    alerts.assert_fires(before, after, {("WeirLimiterDisabled", "1"), ("WeirUnlikeSettings", "")})


def test_page_of_a_browser_that_asks_for_changes(alerts: Alerts) -> None:
    before, sidecar = alerts.calm(), alerts.cluster.sidecars[1]
    connection = http.client.HTTPConnection(sidecar.admin_address, timeout=10)
    for _ in range(25):
        connection.request("PATCH", "/v1/throttle", "{}", {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 415
    connection.close()
    after = alerts.said(lambda said: sum(values(said, "weir_admin_refused_total")) >= 25, "refused changes")
    alerts.assert_fires(before, after, {("WeirAdminRefused", "1")})


def test_file_that_is_refused(alerts: Alerts) -> None:
    sidecar = alerts.cluster.sidecars[2]
    before, text = alerts.calm(), sidecar.config.read_text()
    for refused, content in ((True, f"{text}\nunknown = 1\n"), (False, text)):
        sidecar.config.write_text(content)
        sidecar.send(signal.SIGHUP)
        after = alerts.said(partial(_is_in_trouble, wanted=refused), "the reload")
        alerts.assert_fires(before, after, {("WeirTrouble", "2")} if refused else set())


def test_broker_that_does_not_answer(alerts: Alerts) -> None:
    """Broker 2 hangs. Its own sidecar is not ready, and its replicas lag; its connections stand."""
    broker = alerts.cluster.brokers[2]
    before = alerts.calm()
    broker.send(signal.SIGSTOP)
    try:
        after = alerts.said(
            lambda said: _lags(said) and not all(values(said, "weir_ready")), "a lag, and a sidecar that is not ready"
        )
    finally:
        broker.send(signal.SIGCONT)
    alerts.assert_fires(before, after, {("WeirNotReady", "2"), ("WeirReplicaLagOverLimit", "")})


def test_dead_sidecar(alerts: Alerts) -> None:
    """Broker 2 no longer follows; broker 1's sidecar does not reach it, though broker 1 follows nothing there."""
    cluster = alerts.cluster
    before = alerts.calm()
    cluster.kill_sidecar(2)
    try:
        # A replica that has all that there is stays in sync, also where it does not fetch: something has to be written.
        with LiveProducer(cluster.bootstrap_servers, "calm", [0], rate=10, acks=1):
            after = alerts.said(
                lambda said: _lags(said) and not all(values(said, "weir_upstream_up")), "a lag, and a peer that is down"
            )
    finally:
        cluster.start_sidecar(2)
    fired = {("WeirSidecarDown", "2"), ("WeirUpstreamDown", "1"), ("WeirReplicaLagOverLimit", "")}
    alerts.assert_fires(before, after, fired)


def test_samples_that_are_lost_and_a_certificate_that_ends(alerts: Alerts, tmp_path: Path) -> None:
    """Sidecar 2 is given a certificate, and a folder for its samples that is too small and later no folder at all."""
    cluster, sidecar = alerts.cluster, alerts.cluster.sidecars[2]
    keys, folder = Authority(tmp_path / "keys"), tmp_path / "samples"
    tables = {
        "tls": {"certificate": keys.issue("localhost", days=8).together, "ca": keys.ca, "allowed_names": ["*"]},
        "export": {
            "interval_seconds": 1,
            "directory": str(folder),
            "rotate_bytes": 500,
            "max_disk_bytes": 2_000,
        },
    }
    sidecar.config.write_text(f"{sidecar.config.read_text()}\n{toml_text(tables)}\n")
    cluster.kill_sidecar(2)
    cluster.start_sidecar(2)
    before = alerts.calm()
    after = alerts.said(
        lambda said: sum(values(said, DROPPED)) > sum(values(before, DROPPED)), "samples that made room"
    )
    alerts.assert_fires(before, after, {("WeirSamplesDeletedForSpace", "2")})
    before = alerts.scraped()  # a sample is lost within a second of what follows
    folder.rename(tmp_path / "moved")
    folder.write_text("no folder")
    after = alerts.said(lambda said: any(values(said, DROPPED, 'reason="write_failed"')), "samples that are lost")
    alerts.assert_fires(before, after, {("WeirSamplesDropped", "2")})
    before = alerts.scraped()
    keys.issue("localhost", days=6)  # into the same files
    after = alerts.said(lambda said: min(values(said, EXPIRY)) < 7 * 86400, "a new certificate")
    fired = {("WeirCertificateExpires", "2")}
    if sum(values(after, DROPPED)) > sum(values(before, DROPPED)):
        fired.add(("WeirSamplesDropped", "2"))
    alerts.assert_fires(before, after, fired)


def test_every_alert_has_fired(alerts: Alerts) -> None:
    """By the tests above: this one is skipped where not all of them ran."""
    by_rules_alone = {
        "WeirSidecarSaturated",  # test_saturated.py has its metric
        "WeirClusterFactsUnknown",
        "WeirStrangersFetch",
        "WeirThrottleFailed",
    }  # tests/deploy/rules_test.yml
    if len(alerts.fired) < 5:
        pytest.skip("the tests above did not run")
    alerts_of_file = {line.split()[-1] for line in ALERTS.read_text().splitlines() if "- alert: " in line}
    assert alerts.fired == alerts_of_file - by_rules_alone


def values(said: Scrape, name: str, *labels: str) -> list[float]:
    """The values of a metric's series that have these labels, each as it is written."""
    return [
        value
        for series, value in said.items()
        if series.startswith(f"{name}{{") and all(label in series for label in labels)
    ]


def _is_in_trouble(said: Scrape, *, wanted: bool) -> bool:
    return any(values(said, "weir_trouble")) == wanted


def _lags(said: Scrape) -> bool:
    """Whether each sidecar that knows broker 2's replica of `calm` knows that it is not in sync."""
    lags = values(said, "weir_replica_lag_seconds", 'topic="calm"', 'replica="2"')
    return bool(lags) and min(lags) > LAG_LIMIT_SECONDS
