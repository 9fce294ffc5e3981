"""`weir run --capture`: what is refused before anything is set."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from tests.fakes.servers import serving
from weir.cli.main import main
from weir.proxy.capture.requirements import CaptureError


def refused(*words: str) -> int:
    return main(["run", *words])


def test_machine_that_lacks_something_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_machine() -> None:
        raise CaptureError("capture needs the command ss: install iproute2")

    monkeypatch.setattr("weir.cli.capture_run.check_machine", check_machine)
    assert refused("--capture", "9092", "--bootstrap-server", "127.0.0.1:9092") == 1
    assert capsys.readouterr().err == "weir: capture needs the command ss: install iproute2.\n"


def test_port_that_nothing_listens_on_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weir.cli.capture_run.check_machine", lambda: None)
    monkeypatch.setattr("weir.proxy.capture.requirements._ss", lambda *_: "")
    assert refused("--capture", "9092", "--bootstrap-server", "127.0.0.1:9092") == 1
    assert capsys.readouterr().err == (
        "weir: capture.port: nothing listens on port 9092 of this machine: give the broker's own port.\n"
    )


def test_cluster_that_speaks_tls_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("weir.cli.capture_run.check_machine", lambda: None)
    monkeypatch.setattr("weir.cli.capture_run.check_broker", lambda _: None)
    monkeypatch.setattr("weir.cli.capture_run._ASK_SECONDS", 1)
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
        (["--capture", "9092"], "give --config FILE, or --capture PORT and --bootstrap-server HOST:PORT."),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(*words) == 2
    assert said in capsys.readouterr().err
