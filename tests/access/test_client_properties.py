# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from weir.access.client_properties import PropertiesError, client_options, parse_properties, read_properties
from weir.access.tls_contexts import properties_context
from weir.proxy.tls.keys import KeyFiles, KeysError, load_server_keys


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


def test_escape_that_java_refuses_is_refused() -> None:
    with pytest.raises(PropertiesError) as refused:
        parse_properties('sasl.jaas.config=M required username="DOMAIN\\user";')
    sentence = "sasl.jaas.config has a \\u without four hexadecimal digits: write \\\\ for one \\"
    assert str(refused.value) == sentence


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


SASL, TLS = {"security.protocol": "SASL_PLAINTEXT"}, {"security.protocol": "SSL"}
SCRAM = 'ScramLoginModule required username="u" password="p"'
OTHER_WAY = (
    "give a user of its own with SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN, a ticket (GSSAPI), or a certificate"
    " (security.protocol=SSL)"
)


def test_what_the_protocol_does_not_use_is_left_out() -> None:
    """As kafka-clients do: they make neither TLS nor SASL where it is not asked for."""
    stores = {"ssl.truststore.location": "/none.jks", "ssl.truststore.password": "secret", "ssl.provider": "x"}
    users = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{SCRAM};"}
    found = client_options(SASL | stores | users)
    assert (found.options["sasl_plain_password"], found.ignored) == ("p", tuple(stores))
    found = client_options({**stores, **users, "sasl.mechanism": "OAUTHBEARER"})
    assert (found.options, found.ignored) == ({}, (*stores, *users))


def test_token_of_a_plain_user_is_no_delegation_token() -> None:
    jaas = f"{SCRAM} tokenauth=false;"
    for mechanism, text in (("SCRAM-SHA-512", jaas), ("PLAIN", jaas.replace("false", "true"))):
        assert client_options(SASL | {"sasl.mechanism": mechanism, "sasl.jaas.config": text}).options


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        (
            {"security.protocol": "TLS"},
            "security.protocol has to be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "https://a"} | SASL | {"sasl.mechanism": "OAUTHBEARER"},
            f"sasl.mechanism is OAUTHBEARER, whose tokens a class of Java's fetches: {OTHER_WAY}",
        ),
        (
            {"sasl.client.callback.handler.class": "A"} | SASL | {"sasl.mechanism": "AWS_MSK_IAM"},
            f"sasl.mechanism is AWS_MSK_IAM, which takes Amazon's library for Java: {OTHER_WAY}",
        ),
        (SASL | {"sasl.mechanism": "X"}, f"sasl.mechanism is X, which is not known here: {OTHER_WAY}"),
        (
            SASL | {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f'{SCRAM} tokenauth="true";'},
            "sasl.jaas.config has tokenauth, a delegation token, which cannot be used here: give a user's own name and"
            " password",
        ),
        (
            SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": 'M required username="u" password="XX"YY";'},
            'sasl.jaas.config has an option whose value Kafka would not take: write name="value", and \\" for a quote'
            " in it",
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
            TLS | {"ssl.truststore.password": "secret", "ssl.truststore.location": "/trust.jks"},
            "ssl.truststore.location is of Kafka's default type, JKS, which Java alone can read: write it as PEM"
            " (keytool -list -rfc -keystore FILE > ca.pem), and give ssl.truststore.type=PEM",
        ),
        (
            TLS | {"ssl.keystore.location": "/key.p12", "ssl.keystore.type": "pkcs12"},
            "ssl.keystore.type is PKCS12, which Java alone can read: write it as PEM (keytool -importkeystore to a"
            " PKCS12 file, then openssl pkcs12 -nodes), and give ssl.keystore.type=PEM",
        ),
        (
            TLS | {"ssl.keystore.location": "/none.pem", "ssl.keystore.type": "PEM"},
            "ssl.keystore.location is /none.pem, and there is no such file",
        ),
        (
            TLS | {"ssl.keystore.key": "-----BEGIN"},
            "ssl.keystore.key cannot be used here: put the PEM text into a file, and give ${directory:FOLDER:FILE}, or"
            " ssl.keystore.location",
        ),
        (
            TLS | {"ssl.cipher.suites": "x"},
            "ssl.cipher.suites is not known here, and to leave it out could make the connection less safe",
        ),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms has to be a whole number"),
        (
            TLS | {"ssl.endpoint.identification.algorithm": "x"},
            "ssl.endpoint.identification.algorithm has to be https, or empty",
        ),
    ],
)
def test_unusable_property_is_refused_without_its_secrets(properties: dict[str, str], sentence: str) -> None:
    with pytest.raises(PropertiesError) as refused:
        client_options(properties)
    assert str(refused.value) == sentence


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match="cannot be read: No such file"):
        read_properties(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PropertiesError, match="is no text in UTF-8"):
        read_properties(tmp_path / "bytes")


def test_pem_texts_may_stand_in_files_of_a_directory_provider() -> None:
    """Kafka's own tools take the same properties, with `config.providers=directory`."""
    options = client_options(
        {
            "config.providers": "directory",
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "${directory:/etc/weir-ca:ca.crt}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": "${directory:/etc/weir-keys:broker.crt}",
            "ssl.keystore.key": "${directory:/etc/weir-keys:broker.key}",
        }
    ).options
    assert options == {
        "security_protocol": "SSL",
        "ssl_cafile": "/etc/weir-ca/ca.crt",
        "ssl_certfile": "/etc/weir-keys/broker.crt",
        "ssl_keyfile": "/etc/weir-keys/broker.key",
    }


def test_truststore_may_be_a_folder_of_old_and_new_certificates(tmp_path: Path) -> None:
    """A folder with an authority's old and new certificate is read whole; one without a certificate is refused."""
    authorities = [Authority(tmp_path / name) for name in ("old", "new")]
    folder = tmp_path / "trusted"
    folder.mkdir()
    for number, authority in enumerate(authorities):
        (folder / f"ca-{number}.crt").write_bytes(Path(authority.ca).read_bytes())
    (folder / "ca.password").write_text("no certificate")
    properties = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder)}
    context = properties_context(client_options(properties).options)
    assert len(context.get_ca_certs()) == 2
    files = KeyFiles(ca=str(folder))
    assert len(load_server_keys(files, "required").context.get_ca_certs()) == 2
    assert len(files.paths) == 2
    (folder / "ca-0.crt").unlink()
    (folder / "ca-1.crt").unlink()
    with pytest.raises(KeysError, match="no file"):
        load_server_keys(files, "required")
    with pytest.raises(PropertiesError, match=r"ssl\.truststore\.location"):
        properties_context(client_options(properties).options)
