# SPDX-License-Identifier: Apache-2.0
"""Certificates as plain commands make them: taken on every Python, and with `[tls] strict` refused with a sentence."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import weir
from tests.fakes.pki import Authority
from tests.fakes.relaying import relaying
from tests.fakes.told_broker import told_broker
from tests.proxy.tls.plain_commands import HOST, REFUSED_STRICTLY, WAYS, Made, PlainCommands
from tests.proxy.tls.securing import Keys, secure_client
from weir.access.client_properties import client_options
from weir.access.tls_contexts import client_context, properties_context, server_context
from weir.cli.main import main
from weir.proxy.checkup.certificates import own_gap, peer_gap
from weir.proxy.checkup.look import look
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys
from weir.proxy.tls.live_keys import LiveKeys, TlsClient, TlsServer

pytestmark = pytest.mark.long

DOCS = Path(__file__).parents[3] / "docs" / "tls.md"
ROUTE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:0"
upstream = "127.0.0.1:1"
"""
WORDS = "ca cert does not include key usage extension, which [tls] strict = true asks for: issue it anew as docs/tls.md"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> PlainCommands:
    return PlainCommands(tmp_path_factory.mktemp("plain"))


def files(made: Made, *, strict: bool = False) -> KeyFiles:
    return KeyFiles(certificate=made.together, ca=made.ca, strict=strict)


def client(made: Made, *, strict: bool) -> TlsClient:
    its = files(made, strict=strict)
    return TlsClient(LiveKeys("ingress[0].upstream_tls", its, partial(load_client_keys, its, checks_name=True)), HOST)


@pytest.mark.parametrize("way", WAYS)
async def test_certificates_of_plain_commands_are_taken_unless_strict(way: str, commands: PlainCommands) -> None:
    made = WAYS[way](commands)
    server = load_server_keys(files(made), "none").context
    refusal = REFUSED_STRICTLY[way]
    async with told_broker(tls=server, broker_id=1) as broker:
        taken = await look(broker.address, client(made, strict=False), {})
        strict = await look(broker.address, client(made, strict=True), {})
    assert (taken.trouble, bool(taken.apis)) == (None, True)
    assert strict.trouble == (None if refusal is None else "certificate")
    assert refusal is None or strict.reason.startswith(WORDS)


@pytest.mark.parametrize("way", WAYS)
async def test_gap_of_own_and_of_a_peers_certificate_is_found(way: str, commands: PlainCommands) -> None:
    made = WAYS[way](commands)
    assert own_gap(files(made)) == own_gap(files(made, strict=True)) == REFUSED_STRICTLY[way]
    server = load_server_keys(files(made), "none").context
    context = load_client_keys(files(made, strict=True), checks_name=False).context
    async with told_broker(tls=server, broker_id=1) as broker:
        assert await peer_gap(broker.address, context, HOST) == REFUSED_STRICTLY[way]


def test_gap_is_not_told_where_strictness_is_not_what_refuses(commands: PlainCommands, tmp_path: Path) -> None:
    made = commands.kafkas_short
    assert own_gap(replace(files(made), ca=Authority(tmp_path).ca)) is None
    assert own_gap(replace(files(made), ca=None)) is None
    assert own_gap(KeyFiles(ca=made.ca)) is None


async def test_strict_relay_says_what_certificates_lack_and_a_remedy(commands: PlainCommands, tmp_path: Path) -> None:
    made, keys = commands.kafkas_short, Keys(tmp_path)
    its = KeyFiles(certificate=keys.broker.together, ca=made.ca, strict=True)
    server = TlsServer(LiveKeys("ingress[0].tls", its, partial(load_server_keys, its, "required")), None)
    context = load_client_keys(KeyFiles(certificate=made.together, ca=keys.authority.ca), checks_name=True).context
    async with relaying(tls=server) as relay:
        await secure_client(relay, keys, None, context=context)
        await relay.until(lambda: relay.relay.tls.handshakes["leader", "client", "not_strict"])
        (line,) = relay.log.of("tls_failed")
    assert (line["result"], line["reason"]) == ("not_strict", f"TLS failed: {WORDS} tells, or set strict = false")


def test_certificate_may_be_trusted_without_who_signed_it(commands: PlainCommands) -> None:
    """As in a Java truststore. Python's own default trusts so from 3.13 on."""
    made = commands.kafkas_long
    alone = replace(files(made), ca=made.together)
    assert own_gap(alone) is None
    context = load_client_keys(alone, checks_name=False).context
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN


@pytest.mark.parametrize(
    "make", [client_context, server_context, partial(properties_context, client_options({}).options)]
)
def test_contexts_judge_alike_on_every_python(make: Callable[..., ssl.SSLContext]) -> None:
    lenient = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    assert make().verify_flags == lenient
    assert make(strict=True).verify_flags == lenient | ssl.VERIFY_X509_STRICT


def test_no_other_place_makes_a_context() -> None:
    made = re.compile(r"ssl\.(create_default_context|SSLContext)\(")
    rooms = [Path(room) for room in Path(*weir.__path__).iterdir() if room.is_dir()]
    found = {path.name for room in rooms for path in room.resolve().rglob("*.py") if made.search(path.read_text())}
    assert found == {"tls_contexts.py"}


@pytest.mark.parametrize("strict", [False, True])
def test_strict_alone_is_no_sidecar_tls_and_holds_for_all(commands: PlainCommands, strict: bool) -> None:
    """It asks for no TLS between sidecars, and holds for all tables."""
    made = commands.kafkas_short
    tls = f'[ingress.tls]\ncertificate = "{made.together}"\n[ingress.upstream_tls]\nca = "{made.ca}"\n'
    config = parse_config(f"{ROUTE}{tls}[tls]\nstrict = {str(strict).lower()}\n")
    assert (config.sidecar_tls, config.strict_tls) == (None, strict)
    keys = RouteKeys(config).all_keys
    assert [bool(one.keys.context.verify_flags & ssl.VERIFY_X509_STRICT) for one in keys] == [strict, strict]


def test_table_with_more_than_strict_is_for_sidecars() -> None:
    for more in ("", 'mode = "require"\nstrict = true\n', 'allowed_names = ["*"]\nstrict = false\n'):
        with pytest.raises(ConfigError, match=r"tls\.certificate: is missing"):
            parse_config(f"{ROUTE}[tls]\n{more}")


@pytest.mark.parametrize(
    ("strict", "level", "words"), [("", "warn", "as Kafka's Java"), ("strict = true", "fail", "refuses")]
)
def test_check_and_doctor_tell_of_such_certificates(
    commands: PlainCommands,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    strict: str,
    level: str,
    words: str,
) -> None:
    made = commands.kafkas_short
    path = tmp_path / "weir.toml"
    tls = f'[tls]\ncertificate = "{made.together}"\nca = "{made.ca}"\nallowed_names = ["*"]\n{strict}\n'
    path.write_text(ROUTE + tls)
    assert main(["check", str(path)]) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "RFC 5280" in line]
    assert note.startswith("note: tls: the certificate, or one that signed it, lacks") and words in note
    main(["doctor", str(path)])
    (found,) = [line for line in capsys.readouterr().out.splitlines() if "RFC 5280" in line]
    assert found == f"{level}  {note.removeprefix('note: ')}"


async def test_check_live_tells_what_a_brokers_certificate_lacks(
    commands: PlainCommands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = commands.kafkas_short
    path = tmp_path / "weir.toml"
    properties = tmp_path / "client.properties"
    properties.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={made.ca}\n")
    server = load_server_keys(files(made), "none").context
    async with told_broker(tls=server, broker_id=1, brokers={1: ("localhost", 1)}) as broker:
        port = broker.address.port
        path.write_text(
            f'broker_id = 1\n[cluster]\nbootstrap_servers = "localhost:{port}"\nproperties = "{properties}"\n'
            f'[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:{port}"\n'
        )
        await asyncio.to_thread(main, ["check", "--live", str(path)])
    found = [line for line in capsys.readouterr().out.splitlines() if "RFC 5280" in line]
    assert [line.partition(": ")[0] for line in found] == [f"warn  localhost:{port}"]


def test_commands_of_the_docs_make_faultless_certificates(commands: PlainCommands) -> None:
    made = commands.kafkas_short
    starts = ("openssl req", "printf", "openssl x509 -req")
    reissued, *rest = (line for line in DOCS.read_text().splitlines() if line.startswith(starts))
    commands.shell(reissued.replace("-out ca-cert", "-out ca-new").replace("/CN=kafka-ca", "/CN=ca"))
    new = replace(files(made), ca=str(Path(made.ca).with_name("ca-new")))
    assert own_gap(new) is None
    for line in rest:
        commands.shell(line.replace("ca-cert", "ca-new"))
    signed = commands.made("docs", "ca-new", "cert-signed")
    assert load_client_keys(files(signed), checks_name=True).names == ("broker-1.kafka.internal",)
    assert own_gap(files(signed)) is None
