# SPDX-License-Identifier: Apache-2.0
"""A sidecar's own connections to a real broker whose listener wants SASL, or TLS with certificates on both sides."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.reports import build, partition_bytes
from tests.pipeline.exported import Sidecar, link, partition
from tests.proxy.exporting import sample
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.proxy.cluster import kafka_throttle
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.cluster.metadata import describe, every_topic
from weir.proxy.config.address import Address
from weir.proxy.config.keys import connection_options
from weir.proxy.config.tables import Cluster as ClusterTable
from weir.proxy.config.tables import KafkaExport
from weir.proxy.export.kafka import KafkaSink
from weir.proxy.export.sample import ExportStats
from weir.proxy.log import EventLog

pytestmark = pytest.mark.integration

SAMPLES = "weir-samples"
ZSTD = 4
SCRAM = "SCRAM-SHA-512"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"
WORD = 'se"cret; \\'
JAVA_WORD = WORD.replace("\\", "\\\\").replace('"', '\\"')


def _listener(protocol: str, more: Mapping[str, object]) -> dict[str, object]:
    """Return broker properties that secure the inter-broker listener; a broker alone has no use for it."""
    kinds = f"CLIENT:PLAINTEXT,REPL:{protocol},CONTROLLER:PLAINTEXT"
    return {"listener.security.protocol.map": kinds, **more}


async def _assert_tells(cluster: Cluster, properties: Path) -> None:
    (place,) = cluster.places.values()
    address = Address.parse(place.listener_address)
    options = connection_options(ClusterTable(bootstrap_servers=(address,), properties=str(properties)), strict=False)
    channel = await KafkaChannel.open(address, options)
    try:
        described = await describe(channel, [b"orders"], [b"orders"])
        assert set(described.brokers) == {1}
        partitions = described.topics[b"orders"].partitions
        assert partitions is not None
        assert list(partitions) == [0]
        assert (await every_topic(channel))[1] == {"orders"}
        await kafka_throttle.rates_of(channel, 1)
    finally:
        channel.close()


async def test_sidecar_asks_a_broker_that_wants_a_name_and_a_password(tmp_path: Path) -> None:
    properties = {
        "sasl.enabled.mechanisms": SCRAM,
        "sasl.mechanism.inter.broker.protocol": SCRAM,
        "listener.name.repl.scram-sha-512.sasl.jaas.config": f'{JAAS} username="broker" password="none";',
    }
    client = tmp_path / "client.properties"
    with NEWEST.cluster(1, properties=_listener("SASL_PLAINTEXT", properties)) as cluster:
        cluster.create_topic("orders", {0: [1]})
        _add_user(cluster.bootstrap_servers, "weir", WORD)
        wanted = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={SCRAM}\nsasl.jaas.config={JAAS}"
        escaped = JAVA_WORD.replace("\\", "\\\\")  # as a properties file has it
        client.write_text(f'{wanted} username="weir" password="{escaped}";\n')
        await _assert_tells(cluster, client)
        client.write_text(f'{wanted} username="weir" password="wrong";\n')
        with pytest.raises(ConnectionError, match=f"refuses to authenticate User:weir by {SCRAM}: ") as refused:
            await _assert_tells(cluster, client)
        assert "wrong" not in str(refused.value)


def _add_user(servers: list[str], name: str, password: str) -> None:
    from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        credential = UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_512, password)
        admin.alter_user_scram_credentials([credential])
    finally:
        admin.close()


async def test_sidecar_asks_a_broker_over_tls(tmp_path: Path) -> None:
    broker_key, broker_pem = _certificate(tmp_path, "localhost")
    client_key, client_pem = _certificate(tmp_path, "weir")
    keystore, truststore = tmp_path / "broker-both.pem", tmp_path / "trusted.pem"
    keystore.write_text(broker_key.read_text() + broker_pem.read_text())
    truststore.write_text(client_pem.read_text() + broker_pem.read_text())  # a broker tries its own certificate first
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": truststore,
        "ssl.client.auth": "required",
    }
    both, client = tmp_path / "client-both.pem", tmp_path / "client.properties"
    both.write_text(client_key.read_text() + client_pem.read_text())
    trusts = f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={broker_pem}\n"
    with NEWEST.cluster(1, properties=_listener("SSL", stores)) as cluster:
        cluster.create_topic("orders", {0: [1]})
        client.write_text(f"{trusts}ssl.keystore.type=PEM\nssl.keystore.location={both}\n")
        await _assert_tells(cluster, client)
        client.write_text(trusts)
        with pytest.raises(ConnectionError):
            await _assert_tells(cluster, client)
        client.write_text(f"security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location={both}\n")
        with pytest.raises(ConnectionError, match=r"TLS failed: .*certificate"):
            await _assert_tells(cluster, client)


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of a key and of the certificate that it has signed itself."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return key, certificate


async def test_samples_pass_a_topic_that_wants_tls_and_a_password(tmp_path: Path) -> None:
    """By the properties of Kafka's own clients, on both ends: the sidecar's and Spark's. What is sent is compressed.

    Tables are built of it. What the topic took now is read for today, and not for a day long before.
    """
    key, certificate = _certificate(tmp_path, "localhost")
    together, client = tmp_path / "broker-both.pem", tmp_path / "client.properties"
    together.write_text(key.read_text() + certificate.read_text())
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": together,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificate,
        "sasl.enabled.mechanisms": SCRAM,
        "sasl.mechanism.inter.broker.protocol": SCRAM,
        "listener.name.repl.scram-sha-512.sasl.jaas.config": f'{JAAS} username="broker" password="none";',
    }
    client.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={certificate}\n"
        f'sasl.mechanism={SCRAM}\nsasl.jaas.config={JAAS} username="weir" password="word";\n'
    )
    now = datetime.now(UTC).replace(microsecond=0)
    with NEWEST.cluster(1, properties=_listener("SASL_SSL", properties)) as cluster:
        cluster.create_topic(SAMPLES, {0: [1]})
        _add_user(cluster.bootstrap_servers, "weir", "word")
        (place,) = cluster.places.values()
        address = Address.parse(place.listener_address)
        config = KafkaExport(bootstrap_servers=(address,), topic=SAMPLES, properties=str(client))
        stats = ExportStats()
        sink = KafkaSink(config, 1, stats, EventLog(), connection_options(config, strict=False))
        for days in (0, 3):
            sidecar = Sidecar(start_id=f"{days}", now=now - timedelta(days=days, seconds=10))
            text = sidecar.sample(partition("t", 0, 7), link(7))
            sink.offer(replace(sample(1), chunks=[text]))
        await sink.close(60)
        assert stats.written["kafka"] == 2
        (segment,) = cluster.segments(SAMPLES, 0, 1)
        assert segment.read_bytes()[22] & 7 == ZSTD
        source, options = f"kafka://{address}/{SAMPLES}", ("--command-config", str(client), "--master", "local[1]")
        today, before = str(now.date()), str((now - timedelta(days=3)).date())
        of_today, of_before = await asyncio.gather(
            *(asyncio.to_thread(build, source, tmp_path / day, day, day, *options) for day in (today, before))
        )
    assert (of_today.returncode, of_today.stderr) == (0, "")
    assert of_today.stdout.startswith(f"{today}: 1 samples, ")
    assert [row[2:] for row in partition_bytes(tmp_path / today)] == [("leader", "t", 0, 7)] * 2
    assert of_before.returncode == 1
    assert of_before.stderr.startswith(f"weir: no whole sample arrived of {before}: ")
