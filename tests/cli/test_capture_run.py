"""`weir run --capture`: what is refused before anything is set."""

import pytest

from cli.main import main
from proxy.capture.requirements import CaptureError


def refused(*words: str) -> int:
    return main(["run", *words])


def test_machine_that_lacks_something_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_machine() -> None:
        raise CaptureError("capture needs the command ss: install iproute2")

    monkeypatch.setattr("cli.capture_run.check_machine", check_machine)
    assert refused("--capture", "9092", "--bootstrap-server", "127.0.0.1:9092") == 1
    assert capsys.readouterr().err == "weir: capture needs the command ss: install iproute2.\n"


def test_port_that_nothing_listens_on_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.capture_run.check_machine", lambda: None)
    monkeypatch.setattr("proxy.capture.requirements._ss", lambda *_: "")
    assert refused("--capture", "9092", "--bootstrap-server", "127.0.0.1:9092") == 1
    assert capsys.readouterr().err == (
        "weir: capture.port: nothing listens on port 9092 of this machine: give the broker's own port.\n"
    )


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
