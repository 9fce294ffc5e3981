# SPDX-License-Identifier: Apache-2.0
"""The tables with keys: what each route uses, and the sentences of what cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError

BASE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"
"""
EGRESS = """
[[egress]]
peer = 2
listen = "127.0.1.2:9092"
upstream = "127.0.0.1:9502"
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def pem(authority: Authority) -> str:
    """The lines of a table with a key."""
    issued = authority.issue("broker-1.test")
    return f'certificate = "{issued.certificate}"\nkey = "{issued.key}"\nca = "{authority.ca}"\n'


def keys_of(text: str) -> RouteKeys:
    return RouteKeys(parse_config(text))


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return caught.value


def test_without_tables_no_route_uses_tls() -> None:
    keys = keys_of(BASE + EGRESS)
    assert keys.ingress == keys.egress == [(None, None)]
    assert keys.all_keys == []


def test_ingress_upstream_uses_the_brokers_own_key_and_name(pem: str) -> None:
    keys = keys_of(
        f'{BASE}[ingress.tls]\n{pem}client_auth = "required"\nallowed_names = ["broker-*"]\n[ingress.upstream_tls]\n'
    )
    [(server, client)] = keys.ingress
    assert server is not None and client is not None
    assert (server.allowed_names, server.takes_plaintext) == (("broker-*",), False)
    assert (client.server_name, client.falls_back) == ("broker-1.test", False)
    assert client.keys.files == server.keys.files
    assert [one.name for one in keys.all_keys] == ["ingress[0].tls", "ingress[0].upstream_tls"]


def test_upstream_has_no_certificate_where_clients_need_none(pem: str) -> None:
    """SASL_SSL: who a client is, the broker learns from SASL."""
    [(_, client)] = keys_of(f"{BASE}[ingress.tls]\n{pem}[ingress.upstream_tls]\n").ingress
    assert client is not None
    assert not client.keys.files.has_certificate
    assert client.keys.files.ca is not None


def test_between_sidecars_each_route_may_have_its_own_mode(pem: str) -> None:
    table = f'[tls]\n{pem}allowed_names = ["broker-*"]\n'
    keys = keys_of(f'{BASE}sidecar_tls = "require"\n{EGRESS}{table}')
    [(server, _)], [(_, client)] = keys.ingress, keys.egress
    assert server is not None and client is not None
    assert (server.takes_plaintext, client.falls_back) == (False, True)
    assert client.allowed_names == ("broker-*",)
    off = keys_of(f'{BASE}{EGRESS}sidecar_tls = "off"\n{table}mode = "require"\n')
    assert off.egress == [(None, None)]
    assert off.ingress[0][0] is not None and not off.ingress[0][0].takes_plaintext


def test_capture_uses_the_brokers_own_key_on_the_leaders_side(pem: str) -> None:
    keys = keys_of(
        'broker_id = 1\n[cluster]\nbootstrap_servers = "127.0.0.1:9092"\n[capture]\nport = 9093\n'
        f'[capture.tls]\n{pem}client_auth = "required"\nallowed_names = ["broker-*"]\n[capture.upstream_tls]\n'
    )
    server, client = keys.captured_ingress
    assert server is not None and client is not None
    assert client.server_name == "broker-1.test"
    assert keys.captured_egress == (None, None)


def test_capture_wraps_both_sides_where_sidecars_have_keys(pem: str) -> None:
    keys = keys_of(
        'broker_id = 1\n[cluster]\nbootstrap_servers = "127.0.0.1:9092"\n[capture]\nport = 9093\n'
        f'[tls]\n{pem}allowed_names = ["broker-*"]\n'
    )
    (server, none), (nothing, client) = keys.captured_ingress, keys.captured_egress
    assert server is not None and client is not None
    assert none is None and nothing is None
    assert server.takes_plaintext and client.falls_back


CAPTURED = 'broker_id = 1\n[cluster]\nbootstrap_servers = "127.0.0.1:9092"\n[capture]\nport = 9093\n'
MUTUAL = 'client_auth = "required"\nallowed_names = ["broker-1.test"]\n'


def test_capture_with_all_peers_certificate_ends_followers_tls(pem: str) -> None:
    """Even beside [tls], which is for brokers without TLS."""
    peers = f'[capture.peer_tls]\n{pem}{MUTUAL}[capture.peer_upstream_tls]\n{pem}allowed_names = ["broker-*"]\n'
    keys = keys_of(f'{CAPTURED}{peers}[tls]\n{pem}allowed_names = ["*"]\n')
    server, client = keys.captured_egress
    assert server is not None and client is not None
    assert (server.allowed_names, server.takes_plaintext) == (("broker-1.test",), False)
    assert (client.server_name, client.allowed_names, client.falls_back) == (None, ("broker-*",), False)
    assert not client.keys.keys.context.check_hostname, "one of the names is enough, by whichever address"
    without = keys_of(CAPTURED + peers.replace('allowed_names = ["broker-*"]\n', ""))
    client = without.captured_egress[1]
    assert client is not None and client.keys.keys.context.check_hostname
    assert [one.name for one in without.all_keys] == ["capture.peer_tls", "capture.peer_upstream_tls"]


@pytest.mark.parametrize(
    ("text", "field", "sentence"),
    [
        ("[capture.peer_tls]\n{pem}", "capture.peer_upstream_tls", "is missing: capture.peer_tls is set"),
        ("[capture.peer_upstream_tls]\n", "capture.peer_tls", "is missing: capture.peer_upstream_tls is set"),
        (
            'sides = ["leader"]\n[capture.peer_tls]\n{pem}[capture.peer_upstream_tls]\n',
            "capture.peer_tls",
            "is for the follower's side",
        ),
        (
            '[capture.peer_tls]\n{pem}client_auth = "required"\n[capture.peer_upstream_tls]\n',
            "capture.peer_tls.allowed_names",
            "is missing: for the upstream all who pass are this broker",
        ),
        (
            "[capture.peer_tls]\n{pem}[capture.peer_upstream_tls]\n{pem}",
            "capture.peer_upstream_tls",
            'needs capture.peer_tls client_auth = "required"',
        ),
    ],
)
def test_captured_peers_tls_that_cannot_be_used_is_refused(pem: str, text: str, field: str, sentence: str) -> None:
    error = refusal(CAPTURED + text.replace("{pem}", pem))
    assert error.field == field
    assert sentence in error.reason


REFUSED = [
    ("[ingress.tls]\n", "ingress[0].tls.certificate", "is missing, and so is keystore: TLS needs a key"),
    ('[ingress.tls]\nkey = "/k.pem"', "ingress[0].tls.key", "needs certificate beside it"),
    ('[ingress.tls]\n{pem}keystore = "/k.p12"', "ingress[0].tls.keystore", "cannot be used with certificate"),
    ('[ingress.tls]\ncertificate = "/no.pem"', "ingress[0].tls.certificate", "/no.pem cannot be read: No such file"),
    ('[ingress.tls]\n{pem}allowed_names = ["a"]', "ingress[0].tls.allowed_names", 'needs client_auth = "required"'),
    (
        '[ingress.tls]\n{pem}client_auth = "required"\n[ingress.upstream_tls]\n',
        "ingress[0].tls.allowed_names",
        "is missing: for the upstream all who pass are this broker",
    ),
    (
        "[ingress.tls]\n{pem}[ingress.upstream_tls]\n{pem}",
        "ingress[0].upstream_tls",
        "else whoever connects would be a broker for the upstream",
    ),
    ("[ingress.upstream_tls]\n{pem}", "ingress[0].upstream_tls", "needs ingress[0].tls"),
    ('[ingress.tls]\n{pem}least_version = "1.1"', "ingress[0].tls.least_version", 'must be "1.2" or "1.3"'),
    ('[ingress.tls]\n{pem}client_aut = "x"', "ingress[0].tls.client_aut", 'did you mean "client_auth"?'),
    ("[tls]\n{pem}", "tls.allowed_names", "is missing"),
    ('[tls]\n{pem}allowed_names = ["*"]\nmode = "maybe"', "tls.mode", 'must be "prefer" or "require"'),
]


@pytest.mark.parametrize(("text", "field", "sentence"), REFUSED)
def test_what_cannot_be_used_is_refused_with_a_sentence(pem: str, text: str, field: str, sentence: str) -> None:
    error = refusal(BASE + text.replace("{pem}", pem))
    assert error.field == field
    assert sentence in error.reason


def test_mode_of_a_route_needs_keys_between_sidecars() -> None:
    error = refusal(BASE + 'sidecar_tls = "prefer"\n')
    assert (error.field, error.reason) == ("ingress[0].sidecar_tls", "needs [tls]: the keys between sidecars")


def test_password_is_in_no_sentence(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("locked.test", password="right")  # noqa: S106
    secret = tmp_path / "password"
    secret.write_text("wr0ng-secret\n")
    error = refusal(f'{BASE}[ingress.tls]\nkeystore = "{issued.keystore}"\npassword_file = "{secret}"\n')
    assert "wr0ng" not in error.sentence()
    assert error.reason.endswith("is no PKCS12 file, or its password is wrong")


def test_table_of_tls_options_asks_for_no_tls_between_sidecars() -> None:
    config = parse_config(f"{BASE}[tls]\nworkers = 2\nstrict = true\n")
    assert (config.sidecar_tls, config.tls_workers, config.strict_tls) == (None, 2, True)
    assert parse_config(BASE).tls_workers == 0
    with pytest.raises(ConfigError, match="workers"):
        parse_config(f"{BASE}[tls]\nworkers = 65\n")
