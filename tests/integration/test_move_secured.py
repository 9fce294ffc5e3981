# SPDX-License-Identifier: Apache-2.0
"""`weir move` over SASL and TLS (`--command-config`), and between log directories, on real brokers."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from tests.integration.move_commands import MB, MoveCommands
from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.lab.modes import KraftCluster
from weir.lab.network import LOOPBACK, Ports
from weir.lab.produce import fill
from weir.lab.settings import Place
from weir.planning.move_throttle import DISK_RATE, Standing

pytestmark = pytest.mark.integration

PASSWORD = 'se"cret'  # noqa: S105 - of these brokers alone


def made_keys(folder: Path) -> None:
    """An authority, and a key with a certificate of it, for 127.0.0.1: `ca.pem`, `key.key` and `chain.pem`."""

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "key"):
        openssl(f"genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key")
    openssl("req -x509 -key ca.key -subj /CN=authority -days 2 -out ca.pem")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req -new -key key.key -subj /CN=weir -out csr")
    openssl("x509 -req -in csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile san -days 2 -out chain.pem")
    (folder / "keystore.pem").write_text((folder / "key.key").read_text() + (folder / "chain.pem").read_text())


def one_line(path: Path) -> str:
    return path.read_text().replace("\n", "\\n")


class SecuredCluster(KraftCluster):
    """Two brokers with two log directories each; one more listener wants a certificate and a password.

    The user `weir` may do all, and `mover` what it is allowed in a test.
    """

    def __init__(self, keys: Path) -> None:
        super().__init__(brokers=2)
        self._keys = keys
        self.secured: dict[int, int] = {}

    def _prepare(self, ports: Ports) -> None:
        super()._prepare(ports)
        self.secured = {broker: ports.take() for broker in self.broker_ids}

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        own = super()._properties_of(place, data)
        port = self.secured[place.broker_id]
        jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        (data.parent / "second").mkdir()
        return {
            **own,
            "log.dirs": f"{data},{data.parent / 'second'}",
            "listeners": f"{own['listeners']},SECURED://{LOOPBACK}:{port}",
            "advertised.listeners": f"{own['advertised.listeners']},SECURED://{LOOPBACK}:{port}",
            "listener.security.protocol.map": f"{own['listener.security.protocol.map']},SECURED:SASL_SSL",
            "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f"{jaas} user_weir='{PASSWORD}' user_mover='{PASSWORD}';",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:weir",
            "listener.name.secured.ssl.client.auth": "required",
            "listener.name.secured.ssl.keystore.type": "PEM",
            "listener.name.secured.ssl.keystore.key": one_line(self._keys / "key.key"),
            "listener.name.secured.ssl.keystore.certificate.chain": one_line(self._keys / "chain.pem"),
            "listener.name.secured.ssl.truststore.type": "PEM",
            "listener.name.secured.ssl.truststore.certificates": one_line(self._keys / "ca.pem"),
        }


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    made_keys(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(keys: Path) -> Iterator[SecuredCluster]:
    with SecuredCluster(keys) as cluster:
        yield cluster
        cluster.check_logs()


def secured(
    cluster: SecuredCluster, folder: Path, keys: Path, password: str = PASSWORD, user: str = "weir"
) -> list[str]:
    """The options that lead to the listener with a password."""
    escaped = password.replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="{user}" password="{escaped}";'.replace("\\", "\\\\"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": keys / "ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keys / "keystore.pem",
    }
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return ["--bootstrap-server", f"{LOOPBACK}:{cluster.secured[1]}", "--command-config", str(file)]


def test_move_over_sasl_and_tls_leaves_nothing(cluster: SecuredCluster, keys: Path, tmp_path: Path) -> None:
    """One partition goes to the other broker's second directory, one to the other directory of its own broker."""
    move = MoveCommands(cluster, tmp_path)
    topic = "orders"
    cluster.admin.create_topic(topic, {0: [1], 1: [1]})
    cluster.wait_for("the topic in sync", lambda: cluster.is_in_sync(topic), 30)
    fill(cluster.bootstrap_servers, topic, {0: 2 * MB, 1: 2 * MB})
    first, second = (cluster.brokers[1].data.parent / name for name in ("data", "second"))
    other = second if (first / f"{topic}-1").is_dir() else first
    wanted = {0: (2, cluster.brokers[2].data.parent / "second"), 1: (1, other)}
    entries = [
        {"topic": topic, "partition": number, "replicas": [broker], "log_dirs": [str(folder)]}
        for number, (broker, folder) in wanted.items()
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": entries}))
    there = secured(cluster, tmp_path, keys)
    throttles = ("--throttle", "1MB", "--replica-alter-log-dirs-throttle", "300k", "--timeout", "20000")
    move.run("execute", plan, *there, *throttles)
    standing = move.throttles().rates
    assert standing[1] == {**standing[2], LEADER_RATE: "1000000", DISK_RATE: "300000"}
    assert "still moving" in move.run("verify", plan, *there, status=1)[1]
    assert move.throttles().rates == standing
    move.run("verify", plan, "--watch", *there)
    assert move.throttles() == Standing()
    assert all((folder / f"{topic}-{number}").is_dir() for number, (_, folder) in wanted.items())
    move.admin.close()


def test_each_step_tells_its_partitions_their_directories(cluster: SecuredCluster, keys: Path, tmp_path: Path) -> None:
    move = MoveCommands(cluster, tmp_path)
    topic, second = "in-steps", cluster.brokers[2].data.parent / "second"
    cluster.admin.create_topic(topic, {number: [1] for number in range(3)})
    cluster.wait_for("the topic in sync", lambda: cluster.is_in_sync(topic), 30)
    fill(cluster.bootstrap_servers, topic, dict.fromkeys(range(3), MB // 2))
    entries = [{"topic": topic, "partition": number, "replicas": [2], "log_dirs": [str(second)]} for number in range(3)]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": entries}))
    there = secured(cluster, tmp_path, keys)
    move.run("execute", plan, *there, "--throttle", "2MB", "--reassignment-batch-size", "1")
    assert all((second / f"{topic}-{number}").is_dir() for number in range(3))
    assert move.throttles() == Standing()
    move.admin.close()


def test_topics_outside_the_plan_need_no_rights(cluster: SecuredCluster, keys: Path, tmp_path: Path) -> None:
    """One may be read, another is not seen at all (strimzi #7482). The rights are those in docs/move.md."""
    move = MoveCommands(cluster, tmp_path)
    moved, read, hidden = topics = ("moved", "only-read", "hidden")
    for topic in topics:
        cluster.admin.create_topic(topic, {0: [1]})
    cluster.wait_for("the topic in sync", lambda: cluster.is_in_sync(moved), 30)
    fill(cluster.bootstrap_servers, moved, {0: 4 * MB})
    configs = ["DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"]
    allow(cluster, ResourcePattern(ResourceType.CLUSTER, "kafka-cluster"), [*configs, "ALTER"])
    allow(cluster, ResourcePattern(ResourceType.TOPIC, moved), configs)
    allow(cluster, ResourcePattern(ResourceType.TOPIC, read), ["READ"])
    others = {topic: {LEADER_REPLICAS: "7:1"} for topic in (read, hidden)}
    cluster.admin.set_native_throttle({}, others)
    there = secured(cluster, tmp_path, keys, user="mover")
    for ends_by in ("cancel", "verify"):
        move.run("execute", move.plan(moved, {0: [2]}), *there, "--throttle", "10k")
        assert set(move.throttles().lists) == set(topics)
        assert moved in move.run("list", None, *there)[0]
        if ends_by == "verify":
            assert "still moving" in move.run("verify", move.plan(moved, {0: [2]}), *there, status=1)[1]
            move.run("execute", move.plan(moved, {0: [2]}), *there, "--throttle", "10MB", "--additional")
            move.wait_for_end()
        move.run(ends_by, move.plan(moved, {0: [2]}), *there)
        assert move.throttles() == Standing(lists=others)
    assert [state.replicas for state in cluster.admin.partitions([moved]).values()] == [(2,)]
    cluster.admin.clear_native_throttle([], others)
    _, error = move.run("execute", move.plan(read, {0: [2]}), *there, "--throttle", "1MB", status=1)
    assert f"topic {read} failed: nothing came back: it does not exist, or you have no DescribeConfigs there" in error
    assert (move.throttles(), cluster.admin.reassignments()) == (Standing(), {})
    move.admin.close()


def allow(cluster: SecuredCluster, resource: ResourcePattern, operations: Sequence[str]) -> None:
    """Allow the user `mover` some operations, and wait until each broker knows of it."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        allowed = ACLPermissionType.ALLOW
        admin.create_acls([ACL("User:mover", "*", ACLOperation[name], allowed, resource) for name in operations])
    finally:
        admin.close()


def test_wrong_password_is_told_within_seconds(cluster: SecuredCluster, keys: Path, tmp_path: Path) -> None:
    move = MoveCommands(cluster, tmp_path)
    begun = time.monotonic()
    said = move.run("list", None, *secured(cluster, tmp_path, keys, "guessed"), status=1)[1]
    assert time.monotonic() - begun < 25  # kafka-python tries again for 30 s
    assert "the broker refuses to authenticate User:weir by PLAIN: " in said
    assert "guessed" not in said
    move.admin.close()
