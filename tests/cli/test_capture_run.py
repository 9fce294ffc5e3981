# SPDX-License-Identifier: Apache-2.0
"""`weir run --capture`: what is refused before anything is set."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from tests.fakes.servers import serving
from weir.cli.main import main
from weir.proxy.capture.requirements import CaptureError
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Admin, Config


def refused(*words: str) -> int:
    return main(["run", *words])


def test_machine_that_lacks_something_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_machine() -> None:
        raise CaptureError("capture needs the command ss: install iproute2")

    monkeypatch.setattr("weir.cli.capture_run.check_machine", check_machine)
    assert refused("--capture", "9092", "--bootstrap-server", "127.0.0.1:9092") == 1
    assert capsys.readouterr().err == "weir: capture needs the command ss: install iproute2.\n"


def test_port_that_nothing_listens_on_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weir.cli.capture_run.check_machine", lambda: None)
    monkeypatch.setattr("weir.proxy.capture.requirements._ss", lambda *_: "")
    assert refused("--capture", "9092", "--bootstrap-server", "127.0.0.1:9092") == 1
    assert capsys.readouterr().err == (
        "weir: capture.port: nothing listens on port 9092 of this machine: give the broker's own port.\n"
    )


@pytest.mark.long
def test_cluster_that_speaks_tls_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("weir.cli.capture_run.check_machine", lambda: None)
    monkeypatch.setattr("weir.cli.capture_run.check_broker", lambda _: None)
    monkeypatch.setattr("weir.cli.own_broker._ASK_SECONDS", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path).issue("broker-1").together)

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def refused_by_tls() -> tuple[int, int]:
        async with serving(ignore, context) as (_, port):
            words = ("--capture", str(port), "--bootstrap-server", f"127.0.0.1:{port}")
            return port, await asyncio.to_thread(refused, *words)

    port, status = asyncio.run(refused_by_tls())
    assert status == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port} speaks TLS" in said
    assert "write a file with [capture.tls], [capture.upstream_tls] and [cluster] properties" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--capture", "0", "--bootstrap-server", "a:1"], "--capture: 0 is no port: give one from 1 to 65535."),
        (["--capture", "9092", "--bootstrap-server", "a"], "--bootstrap-server: "),
        (["--capture", "9092", "--bootstrap-server", "a:1", "--admin-listen", "b"], "--admin-listen: "),
        (
            ["--capture", "9092", "--bootstrap-server", "a:1", "--admin-listen", "0.0.0.0:9690"],
            "--token-file is missing: others than this machine reach 0.0.0.0:9690",
        ),
        (
            ["--capture", "9092", "--bootstrap-server", "a:1", "--token-file", "t"],
            "--token-file needs --admin-listen",
        ),
        (["--config", "f", "--admin-listen", "0.0.0.0:9690"], "--config has all that is needed"),
        (["--capture", "9092"], "give --config FILE, or --capture PORT and --bootstrap-server HOST:PORT."),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(*words) == 2
    assert said in capsys.readouterr().err


def test_admin_address_and_token_of_the_words_are_the_sidecar_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run: list[Config] = []

    def run_config(config: Config, path: Path | None) -> int:
        run.append(config)
        return 0

    monkeypatch.setattr("weir.cli.capture_run.check_machine", lambda: None)
    monkeypatch.setattr("weir.cli.capture_run.check_broker", lambda _: None)
    monkeypatch.setattr("weir.cli.capture_run.own_broker", lambda *_: 3)
    monkeypatch.setattr("weir.cli.configured.run_config", run_config)
    token = tmp_path / "token"
    token.write_text("a-long-enough-token\n")
    words = ["--capture", "9092", "--bootstrap-server", "127.0.0.1:9092"]
    assert refused(*words, "--admin-listen", "0.0.0.0:9690", "--token-file", str(token)) == 0
    assert refused(*words) == 0
    (open_to_all, on_loopback) = run
    assert open_to_all.broker_id == 3
    assert open_to_all.admin == Admin(
        listen=Address("0.0.0.0", 9690), read_token_file=str(token), write_token_file=str(token)
    )
    assert on_loopback.admin == Admin()
