# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL between brokers that authorize what they are asked, with sidecars between them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

from tests.fakes.pki import Authority, Issued
from tests.integration.moves import (
    MB,
    assert_identical,
    assert_read_once,
    clear,
    filled,
    moving,
    throttle,
    wait_for_bytes,
)
from tests.integration.secured import (
    BROKERS,
    FOLLOWER,
    LEADER,
    RATE,
    Pki,
    accepted,
    assert_keeps_rate,
    restart,
    secured,
)
from tests.protocol.wire import request
from tests.proxy.limited import SOURCE, produce
from weir.lab.network import LOOPBACK
from weir.lab.produce import LiveProducer
from weir.lab.sasl import PASSWORD, SCRAM
from weir.lab.secured import SecuredCluster
from weir.lab.security import CLIENT, BrokerKeys, principal
from weir.lab.settings import Route, toml_text
from weir.lab.sidecar import Sidecar
from weir.proxy.limits.gate import PATIENT_SECONDS

pytestmark = pytest.mark.integration

LIMIT = 100  # records/s
METADATA = 3
ROUNDS = 4  # of four requests worth a second each, and one of another kind
MOST_BEHIND = 2.0  # seconds, where a request of another kind would wait for 3: 1, and time for a slow machine
RECORDS = 1300  # 13 s at that, which is longer than a SASL session
AT_THE_LEADERS = {
    "quotas": [{"name": "in", "side": "follower", "rate": RATE, "peers": [FOLLOWER], "kept_at": "leaders"}]
}


def test_quota_at_a_leader_with_tls_outlives_keys_and_strangers(
    tmp_path: Path,
) -> None:
    """TLS ends at the leader's sidecar, and begins again towards the broker, with the broker's own key.

    The follower's sidecar cannot see into TLS, so its leaders keep its quota.
    """
    with secured("SSL", tmp_path, AT_THE_LEADERS) as (cluster, pki):
        sidecar = cluster.sidecars[LEADER]
        moved = filled(cluster, "moved", [LEADER], 16 * MB)
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            wait_for_bytes(cluster, received, 2 * MB)
            assert_keeps_rate(cluster, received, 3 * MB)
            before = accepted(sidecar)
            pki.issue(LEADER)
            strangers = {
                "unknown_ca": Authority(tmp_path / "other").issue(principal(FOLLOWER)),
                "wrong_name": pki.authority.issue("a-client"),
                "no_certificate": None,
            }
            for stranger in strangers.values():
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    _knock(cluster, stranger)
            assert_keeps_rate(cluster, received, 3 * MB)
            metrics = sidecar.metrics()
            for result in strangers:
                assert metrics.value("weir_tls_handshakes_total", side="leader", end="client", result=result) == 1
            cluster.wait_for("the new key in use", lambda: _reloads(sidecar) >= 1, 15)
            assert accepted(sidecar) == before + len(strangers)  # the follower's connection goes on
            sidecar.delete_throttle()
        assert_identical(cluster, [moved], *BROKERS)
        assert cluster.sidecars[FOLLOWER].metrics().value("weir_passthrough_total", reason="tls") > 0
        # the sidecar has its own broker's certificate
        assert cluster.fetchers(LEADER) == {(principal(LEADER), LOOPBACK)}


def _reloads(sidecar: Sidecar) -> float:
    return sidecar.metrics().value("weir_tls_reloads_total", result="ok")


def _knock(cluster: SecuredCluster, issued: Issued | None, broker: int = LEADER) -> None:
    """Connect to a broker's ingress as a follower would, with this certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if issued is not None:
        context.load_cert_chain(issued.together)
    address = (LOOPBACK, cluster.places[broker].advertised)
    with (
        socket.create_connection(address, timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 0000"))  # ApiVersions
        if not connection.recv(4):
            raise ConnectionResetError


@pytest.fixture(scope="class")
def tls_and_sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecuredCluster, Pki]]:
    with secured("SASL_SSL", tmp_path_factory.mktemp("keys")) as running:
        yield running


class TestTlsAndSasl:
    """TLS ends at the leader's sidecar, and SASL passes through it."""

    def test_leader_sees_each_follower_by_its_user(self, tls_and_sasl: tuple[SecuredCluster, Pki]) -> None:
        cluster, _ = tls_and_sasl
        moved = filled(cluster, "moved", [LEADER], 16 * MB)
        cluster.sidecars[LEADER].put_throttle(throttle(moved, leader=RATE))
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            wait_for_bytes(cluster, received, MB // 2)
            assert_keeps_rate(cluster, received, 11 * MB)  # longer than a session
            cluster.sidecars[LEADER].delete_throttle()
        assert_identical(cluster, [moved], *BROKERS)
        assert cluster.fetchers(LEADER) == {(principal(FOLLOWER), LOOPBACK)}

    def test_clients_keep_their_limit_on_connections_that_stay(self, tls_and_sasl: tuple[SecuredCluster, Pki]) -> None:
        """A sink reads what a source writes, each for longer than a SASL session."""
        cluster, pki = tls_and_sasl
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": pki.authority.ca,
            "sasl.mechanism": SCRAM,
            "sasl.username": CLIENT,
            "sasl.password": PASSWORD,
        }
        _held_to_their_limit(cluster, LEADER, settings, RECORDS)
        assert CLIENT not in {user for user, _ in cluster.fetchers(LEADER)}


def _held_to_their_limit(cluster: SecuredCluster, broker: int, settings: dict[str, str], records: int) -> None:
    """Have a sink read what a source writes, both through a broker's sidecar and held to LIMIT."""
    cluster.create_topic("limited", {0: [broker]})
    ids = {kind: f"connector-{kind}-limited-0" for kind in ("consumer", "producer")}
    entry = {"client_id": "connector-*", "record.rate.limit": LIMIT}
    for sidecar in cluster.sidecars.values():
        status, body = sidecar.http("PUT", "/v1/limits", {"client": [entry]})
        assert status == 200, body
    errors: list[str] = []
    common = settings | {
        "bootstrap.servers": f"localhost:{cluster.places[broker].advertised}",
        "error_cb": lambda error: errors.append(str(error)),
    }
    # requests in flight pass when a session ends, so they are as few as in Java
    few = {"batch.num.messages": 10, "max.in.flight": 5}
    producer = Producer(common | few | {"client.id": ids["producer"]})
    group = {"group.id": "limited", "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 1}
    consumer = Consumer(common | {"client.id": ids["consumer"]} | group)
    consumer.subscribe(["limited"])
    delivered: list[float] = []
    for number in range(records):
        producer.produce("limited", f"{number:06d}", on_delivery=lambda *_: delivered.append(monotonic()))
    read: list[tuple[float, int]] = []
    end = monotonic() + 60
    while (len(read) < records or len(delivered) < records) and monotonic() < end:
        producer.poll(0)
        found = [message for message in consumer.consume(records, timeout=0.05) if message.error() is None]
        read += [(monotonic(), int(message.value() or b"")) for message in found]
    assert [number for _, number in read] == list(range(records))
    metrics = cluster.sidecars[broker].metrics()
    for kind, times in (("consumer", [at for at, _ in read]), ("producer", delivered)):
        assert records / LIMIT - 2 < times[-1] - times[0] < 2 * records / LIMIT, kind
        assert metrics.value("weir_task_records_total", client_id=ids[kind]) >= records
        assert metrics.value("weir_task_throttled_ratio", client_id=ids[kind]) > 0.2
    consumer.close()
    assert errors == []
    cut = metrics.samples("weir_limit_holds_cut_total")
    assert sum(one.value for one in cut if one.labels["then"] == "passed") <= 10


@contextmanager
def clients_with_certificates(folder: Path, **options: Any) -> Iterator[tuple[SecuredCluster, Authority, Issued]]:
    """Run a broker whose clients' listener has an ingress of its own, with the certificate of the user `application`.

    That user may do everything with the topic and the group `limited`.
    """
    authority = Authority(folder)
    here, application = authority.issue(principal(1), names=["localhost"]), authority.issue("application")
    of_clients = {"ca": authority.ca, "client_auth": "required", "allowed_names": ["application"]}
    ingress = {
        "tls": {"certificate": here.together, **of_clients},
        "upstream_tls": {"certificate": application.together, "ca": authority.ca},
    }
    keys = {1: BrokerKeys(here.together, authority.ca)}
    with SecuredCluster("SSL", keys, ingress={1: ingress}, brokers=1, routes=Route.INGRESS, **options) as cluster:
        who = {("User:application", ACLOperation.ALL), ("User:ANONYMOUS", ACLOperation.DESCRIBE)}
        acls = [
            ACL(name, "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, "limited"))
            for name, operation in who
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
        ]
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        admin.create_acls(acls)
        admin.close()
        yield cluster, authority, application


def test_clients_with_certificates_are_held_to_their_limit(tmp_path: Path) -> None:
    """The broker knows who they are. Somebody else's certificate is not taken."""
    with clients_with_certificates(tmp_path) as (cluster, authority, application):
        settings = {"security.protocol": "SSL", "ssl.ca.location": authority.ca}
        own = {"ssl.certificate.location": application.certificate, "ssl.key.location": application.key}
        _held_to_their_limit(cluster, 1, settings | own, 6 * LIMIT)
        for operation in ("READ", "WRITE"):
            assert f"User:application is Allowed operation = {operation} " in cluster.brokers[1].log.read_text()
        other = authority.issue("somebody-else")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _knock(cluster, other, 1)


def test_a_held_produce_gives_way_through_workers_that_do_tls(tmp_path: Path) -> None:
    """What waits behind it is then in a worker, which has decrypted it."""
    tables = {"tls": {"workers": 2}}
    with clients_with_certificates(tmp_path, sidecar_tables=tables) as (cluster, authority, application):
        cluster.create_topic("limited", {0: [1]})
        entry = {"client_id": SOURCE, "record.rate.limit": LIMIT}
        assert cluster.sidecars[1].http("PUT", "/v1/limits", {"client": [entry]})[0] == 200
        context = ssl.create_default_context(cafile=authority.ca)
        context.load_cert_chain(application.together)
        address = (LOOPBACK, cluster.places[1].advertised)
        with (
            socket.create_connection(address, timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            times = []
            for _ in range(ROUNDS):
                begin = monotonic()
                client.sendall(b"".join(produce(number, LIMIT, topic="limited") for number in range(4)))
                client.sendall(request(METADATA, 1, 4, bytes(4), client_id=SOURCE.encode()))
                assert [_correlation_id(client) for _ in range(5)] == list(range(5))
                times.append(monotonic() - begin)
                sleep(max(0.0, 4.0 - times[-1]))  # so that the debt does not grow
        assert max(times) < MOST_BEHIND, times
        assert min(times) > PATIENT_SECONDS, times
        busy = cluster.sidecars[1].metrics().samples("weir_tls_worker_busy_ratio")
        assert len(busy) == 2
        seen = cluster.sidecars[1].metrics().value("weir_task_records_total", client_id=SOURCE)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers[0], "group.id": "limited"})
        _, end = consumer.get_watermark_offsets(TopicPartition("limited", 0), timeout=10)
        consumer.close()
        assert seen == end == 4 * LIMIT * ROUNDS


def _correlation_id(client: ssl.SSLSocket) -> int:
    """Read an answer, and return whose it is."""
    size = int.from_bytes(_exactly(client, 4))
    return int.from_bytes(_exactly(client, size)[:4])


def _exactly(client: ssl.SSLSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = client.recv(size - len(found))
        assert more
        found += more
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecuredCluster, Pki]]:
    with secured("PLAINTEXT", tmp_path_factory.mktemp("keys")) as running:
        yield running


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_tls_is_switched_on_one_broker_at_a_time(plain: tuple[SecuredCluster, Pki], order: Sequence[int]) -> None:
    """Records are produced with acks=all all the while. A sidecar that restarts breaks connections, and no more."""
    cluster, pki = plain
    first, last = order
    live = f"live-{first}"
    cluster.create_topic(live, {0: [first, last]})
    cluster.create_topic(f"back-{first}", {0: [last, first]})
    files = {one: sidecar.config.read_text() for one, sidecar in cluster.sidecars.items()}
    try:
        with LiveProducer(cluster.bootstrap_servers, live, [0], rate=30) as producer:
            for broker in order:
                # The first one finds no TLS at the last one, and tries it again after a minute.
                if broker == last:
                    cluster.wait_for("a connection without TLS", lambda: _plaintext(cluster, first) > 0, 20)
                text = toml_text({"tls": pki.between_sidecars(broker)})
                restart(cluster, broker, f"{files[broker]}\n{text}")
                cluster.wait_for(f"{live} in sync", lambda: cluster.is_in_sync(live), 20)
            cluster.wait_for("TLS from the last to the first", lambda: _handshakes(cluster, last) > 0, 20)
            moved = filled(cluster, f"moved-{first}", [LEADER], 6 * MB)
            cluster.sidecars[LEADER].put_throttle(throttle(moved, leader=RATE))
            with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
                wait_for_bytes(cluster, received, MB // 2)
                assert_keeps_rate(cluster, received, 3 * MB)
                cluster.sidecars[LEADER].delete_throttle()
        assert producer.failed == 0
        assert_read_once(cluster, live, producer)
        assert_identical(cluster, [moved], *BROKERS)
        assert cluster.fetchers(LEADER) == {("ANONYMOUS", LOOPBACK)}
    finally:
        for broker, text in files.items():
            restart(cluster, broker, text)
        clear(cluster)


def _handshakes(cluster: SecuredCluster, broker: int) -> float:
    """How many connections a broker's sidecar has opened to the other one with TLS."""
    metrics = cluster.sidecars[broker].metrics()
    return metrics.value("weir_tls_handshakes_total", side="follower", end="upstream", result="ok")


def _plaintext(cluster: SecuredCluster, broker: int) -> float:
    """How many connections a broker's sidecar has opened to the other one without TLS, although it prefers it."""
    return cluster.sidecars[broker].metrics().value("weir_tls_plaintext_total", side="follower")
