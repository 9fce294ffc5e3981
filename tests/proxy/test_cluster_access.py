# SPDX-License-Identifier: Apache-2.0
"""`[cluster] properties`: Kafka's client properties for a sidecar's own connections."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from weir.proxy.config.keys import connection_options
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Cluster

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
BASE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"
[cluster]
bootstrap_servers = "127.0.0.1:9101"
"""


def options(tmp_path: Path, text: str, *, strict: bool = False) -> dict[str, object]:
    file = tmp_path / "client.properties"
    file.write_text(text)
    return connection_options(Cluster(bootstrap_servers=(), properties=str(file)), strict=strict)


def test_without_a_file_connections_are_plain() -> None:
    assert connection_options(Cluster(bootstrap_servers=()), strict=False) == {}


def test_name_and_password_are_those_of_the_file(tmp_path: Path) -> None:
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={JAAS}\nclient.id=other\n"
    assert options(tmp_path, text) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }


@pytest.mark.parametrize("checks", [True, False])
def test_tls_checks_certificates_and_names_unless_told_not_to(tmp_path: Path, checks: bool) -> None:
    text = "security.protocol=SSL\n" + ("" if checks else "ssl.endpoint.identification.algorithm=\n")
    context = options(tmp_path, text)["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is checks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=SASL_SSL", "sasl.mechanism is GSSAPI (Kafka's default), which a sidecar cannot use"),
        ("security.protocol=TLS", "security.protocol has to be one of"),
        ("security.protocol=SSL\nssl.truststore.location=/nowhere.jks", "ssl.truststore.location is of Kafka"),
        ("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=FILE", "no certificates in PEM form"),
        ("security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location=FILE", "no certificate with its key"),
    ],
)
def test_file_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text.replace("FILE", str(file)))
    with pytest.raises(ConfigError) as refused:
        parse_config(f'{BASE}properties = "{file}"\n')
    assert refused.value.field == "cluster.properties"
    assert words in refused.value.reason
    assert "\n" not in str(refused.value)


def test_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.properties: /nowhere cannot be read"):
        parse_config(f'{BASE}properties = "/nowhere"\n')
