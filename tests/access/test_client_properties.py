from pathlib import Path

import pytest

from weir.access.client_properties import PropertiesError, client_options, parse_properties, read_properties


def test_text_is_read_as_java_reads_it() -> None:
    text = r"""
# a comment
! another one
a = 1
b:2
c 3
d\ e\=f = g
long = first \
       second \
       third
empty
umlaut=\u00fc\t|
path=C:\\dir
"""
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d e=f": "g",
        "long": "first second third",
        "empty": "",
        "umlaut": "ü\t|",
        "path": "C:\\dir",
    }


def test_no_properties_are_no_options() -> None:
    assert dict(client_options({}).options) == {}


def test_scram_over_tls_has_name_password_and_certificates(tmp_path: Path) -> None:
    authority, key = tmp_path / "ca.pem", tmp_path / "client.pem"
    authority.touch()
    key.touch()
    file = tmp_path / "client.properties"
    file.write_text(
        f"""security.protocol=sasl_ssl
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="alice" password="a\\\\"b=c;";
ssl.truststore.type=PEM
ssl.truststore.location={authority}
ssl.keystore.type=PEM
ssl.keystore.location={key}
ssl.key.password=secret
ssl.endpoint.identification.algorithm=
request.timeout.ms=5000
key.serializer=org.example.Serializer
"""
    )
    found = read_properties(file)
    assert found.options == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": 'a"b=c;',
        "ssl_cafile": str(authority),
        "ssl_certfile": str(key),
        "ssl_keyfile": str(key),
        "ssl_password": "secret",
        "ssl_check_hostname": False,
        "request_timeout_ms": 5000,
    }
    assert found.ignored == ("key.serializer",)


def test_kerberos_is_kafkas_default_mechanism() -> None:
    options = client_options({"security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "kafka"}).options
    assert options == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
    }


SASL = {"security.protocol": "SASL_PLAINTEXT"}


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        (
            {"security.protocol": "TLS"},
            "security.protocol has to be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            SASL | {"sasl.mechanism": "OAUTHBEARER"},
            "sasl.mechanism is OAUTHBEARER, which cannot be used here: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and GSSAPI"
            " can",
        ),
        (
            SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "PlainLoginModule required;"},
            'sasl.jaas.config has to have username="..." and password="..."',
        ),
        (
            SASL | {"sasl.jaas.config": 'Krb5LoginModule required useKeyTab=true keyTab="/k";'},
            "sasl.jaas.config names a key tab, which cannot be used here: run kinit before",
        ),
        (
            {"ssl.truststore.location": "/trust.jks"},
            "ssl.truststore.type is JKS, which Java alone can read: export it to a PEM file, and give"
            " ssl.truststore.type=PEM",
        ),
        (
            {"ssl.keystore.location": "/none.pem", "ssl.keystore.type": "PEM"},
            "ssl.keystore.location is /none.pem, and there is no such file",
        ),
        (
            {"ssl.keystore.key": "-----BEGIN"},
            "ssl.keystore.key cannot be used here: put the PEM text into a file, and give its ssl.keystore.location",
        ),
        (
            {"ssl.cipher.suites": "x"},
            "ssl.cipher.suites is not known here, and to leave it out could make the connection less safe",
        ),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms has to be a whole number"),
        (
            {"ssl.endpoint.identification.algorithm": "x"},
            "ssl.endpoint.identification.algorithm has to be https, or empty",
        ),
    ],
)
def test_property_that_cannot_be_used_is_refused_without_its_secrets(properties: dict[str, str], sentence: str) -> None:
    with pytest.raises(PropertiesError) as refused:
        client_options(properties)
    assert str(refused.value) == sentence


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match="cannot be read: No such file"):
        read_properties(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PropertiesError, match="is no text in UTF-8"):
        read_properties(tmp_path / "bytes")
