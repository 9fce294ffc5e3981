# SPDX-License-Identifier: Apache-2.0
"""Routes, addresses and broker ids of a configuration."""

from __future__ import annotations

import re

import pytest

from tests.proxy.test_config import refusal
from weir.proxy.config.address import Address
from weir.proxy.config.load import broker_id_of, parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Config


def routes(*, ingress: str = "127.0.0.1:9201", egress: str = "127.0.0.1:9502", listen: str = "127.0.0.1:9501") -> str:
    return f"""
    broker_id = 1
    [[ingress]]
    listen = "{listen}"
    upstream = "{ingress}"
    [[egress]]
    peer = 2
    listen = "127.0.1.2:9092"
    upstream = "{egress}"
    """


LOOPS = [
    ("ingress[0].upstream", routes(ingress="127.0.0.1:9501")),
    ("ingress[0].upstream", routes(ingress="localhost:9501")),
    ("ingress[0].upstream", routes(ingress="LOCALHOST:9501", listen="localhost:9501")),
    ("ingress[0].upstream", routes(ingress="b1.example.invalid:9501", listen="B1.example.invalid:9501")),
    ("ingress[0].upstream", routes(ingress="127.0.0.1:9501", listen="0.0.0.0:9501")),
    ("ingress[0].upstream", routes(ingress="127.3.2.1:9501", listen="0.0.0.0:9501")),
    ("ingress[0].upstream", routes(ingress="localhost:9501", listen="[::]:9501")),
    ("ingress[0].upstream", routes(ingress="[::ffff:127.0.0.1]:9501")),
    ("ingress[0].upstream", routes(ingress="0.0.0.0:9201")),
    ("ingress[0].upstream", routes(ingress="0:9501")),
    ("ingress[0].upstream", routes(ingress="127.1:9501")),
    ("ingress[0].upstream", routes(ingress="2130706433:9501")),
    ("ingress[0].upstream", routes(ingress="127.0.1.2:9092")),
    ("ingress[0].upstream", routes(ingress="127.0.0.1:9690")),
    ("egress[0].upstream", routes(egress="127.0.0.1:9501")),
    ("egress[0].upstream", routes(egress="127.0.1.2:9092")),
    ("egress[0].listen", routes(listen="127.0.1.2:9092")),
    ("egress[0].listen", routes(listen="0.0.0.0:9092")),
    ("admin.listen", routes(listen="127.0.0.1:9690")),
]


@pytest.mark.parametrize(("field", "text"), LOOPS)
def test_routes_that_loop_or_clash_are_refused(field: str, text: str) -> None:
    assert refusal(text).field == field


@pytest.mark.parametrize(
    "text",
    [
        routes(),
        routes(ingress="127.0.0.2:9501"),
        routes(ingress="192.0.2.1:9501", listen="0.0.0.0:9501"),
        routes(egress="127.0.0.1:9092"),
        routes(egress="b2.example.invalid:9501"),
        routes(listen="127.0.0.1:0"),
    ],
)
def test_routes_that_lead_elsewhere_are_accepted(text: str) -> None:
    """Another address of the same port is another listener: 127.0.0.2 is not 127.0.0.1."""
    assert isinstance(parse_config(text), Config)


def test_routes_peer_that_is_this_broker_is_refused() -> None:
    assert refusal(routes().replace("peer = 2", "peer = 1")).field == "egress[0].peer"


def test_routes_peer_given_twice_is_refused() -> None:
    again = '[[egress]]\npeer = 2\nlisten = "127.0.1.3:9092"\nupstream = "127.0.0.1:9503"'
    error = refusal(routes() + again)
    assert error.field == "egress[1].peer"
    assert "egress[0]" in error.reason


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.3.2.1:1", True),
        ("[::1]:1", True),
        ("LocalHost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("broker-1:1", False),
    ],
)
def test_address_of_this_machine_alone_is_loopback(text: str, is_loopback: bool) -> None:
    assert Address.parse(text).is_loopback is is_loopback


def test_address_shown_is_what_was_parsed() -> None:
    for text in ("127.0.0.1:9092", "[::1]:1", "b_1.kafka-x:65535", f"{'a' * 63}.b.:1"):
        assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:",
        ":1",
        "a:b",
        "a:1:2",
        "a b:1",
        "[::1]",
        "[a]:1",
        "a:-1",
        "a:123456",
        "a..b:1",
        ".:1",
        f"{'a' * 64}:1",
    ],
)
def test_address_of_another_form_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text)) + "|port"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("told", "name", "broker_id"),
    [
        ("env:POD_NAME", "kafka-brokers-12", 12),
        ("env:POD_NAME", "7", 7),
        ("env:POD_NAME+100", "kafka-broker-2", 102),
        ("env:POD_NAME", "kafka-007", 7),
    ],
)
def test_broker_id_is_the_number_at_the_end_of_a_variable(told: str, name: str, broker_id: int) -> None:
    assert broker_id_of(told, {"POD_NAME": name}) == broker_id


@pytest.mark.parametrize(
    ("told", "environment", "reason"),
    [
        ("env:POD_NAME", {}, "has none"),
        ("env:POD_NAME", {"POD_NAME": "kafka-0-x"}, "ends with none"),
        ("env:POD_NAME", {"POD_NAME": ""}, "ends with none"),
        ("env:POD NAME", {"POD NAME": "1"}, "must be an integer, or"),
        ("$POD_NAME", {"POD_NAME": "kafka-1"}, "must be an integer, or"),
    ],
)
def test_broker_id_that_no_variable_gives_is_refused(told: str, environment: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        broker_id_of(told, environment)
    assert refused.value.field == "broker_id"


def test_one_file_is_for_every_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'broker_id = "env:POD_NAME"\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:1"\n'
    monkeypatch.setenv("POD_NAME", "kafka-brokers-31")
    assert parse_config(text).broker_id == 31
    monkeypatch.setenv("POD_NAME", "kafka-99999999999")
    with pytest.raises(ConfigError, match="broker_id"):
        parse_config(text)
