# SPDX-License-Identifier: Apache-2.0
"""`weir check --live` as a command: its lines, its JSON and its exit status."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import failing
from tests.fakes.pki import Authority
from weir.cli.main import main

NOTHING_RUNS = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:{port}"
upstream = "127.0.0.1:1"
[admin]
listen = "127.0.0.1:0"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A configuration whose upstream is down, and whose addresses are free."""
    path = tmp_path / "weir.toml"
    path.write_text(NOTHING_RUNS.format(port=0))
    return str(path)


def test_check_live_upstream_that_is_down_is_one_line_status_1(capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert main(["check", "--live", file]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "ok    ingress[0].listen: 127.0.0.1:0 is free.",
        "ok    admin.listen: 127.0.0.1:0 is free.",
        "fail  ingress[0].upstream: nothing listens on 127.0.0.1:1: correct the port, or start the broker if it does"
        " not run.",
    ]


def test_check_live_json_has_the_findings(capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert main(["check", "--live", "--config", file, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["valid"], [one["level"] for one in said["live"]]) == (True, ["ok", "ok", "fail"])


def test_check_without_live_asks_nobody(capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert main(["check", file]) == 0
    assert "fail" not in capsys.readouterr().out


def test_check_live_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "weir.toml"
        path.write_text(NOTHING_RUNS.format(port=taken.getsockname()[1]))
        assert main(["check", "--live", str(path)]) == 1
    assert "is taken by another process (ss -ltnp shows which)" in capsys.readouterr().out


def test_doctor_without_a_file_looks_at_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] is None
    assert {"weir", "capture", "listeners", "tls", "user", "descriptors", "clock"} <= {
        one["about"] for one in said["found"]
    }


def test_doctor_with_a_file_looks_at_what_it_leads_to(capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert main(["doctor", file]) == 1
    out = capsys.readouterr().out.splitlines()
    assert all(line[:6] in ("ok    ", "warn  ", "fail  ") for line in out)
    assert [line for line in out if line.startswith("fail")] == [
        "fail  ingress[0].upstream: nothing listens on 127.0.0.1:1: correct the port, or start the broker if it does"
        " not run."
    ]


@pytest.mark.long
def test_doctor_tells_that_no_sidecar_runs_or_that_it_hangs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one, which is stopped."""
    monkeypatch.setattr("weir.cli.sidecars.TIMEOUT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = tmp_path / "weir.toml"
    path.write_text(
        NOTHING_RUNS.format(port=0).replace('[admin]\nlisten = "127.0.0.1:0"', f'[admin]\nlisten = "127.0.0.1:{port}"')
    )

    def said(*words: str) -> list[str]:
        main([*words, str(path)])
        return [line for line in capsys.readouterr().out.splitlines() if " sidecar: " in line]

    (none,) = said("doctor")
    assert none.startswith("warn  sidecar: none runs with this file")
    words = [sys.executable, "-m", "weir", "run", "--config", str(path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "role=admin" not in process.stderr.readline():
            pass
        try:
            assert said("doctor") == []
            process.send_signal(signal.SIGSTOP)
            for command in (("doctor",), ("check", "--live")):
                (hung,) = said(*command)
                assert hung.startswith(f"fail  sidecar: process {process.pid} is the sidecar of this file and does not")
        finally:
            process.kill()


def test_doctor_tells_of_the_admin_servers_certificate_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = f'[admin.tls]\ncertificate = "{authority.issue("weir-1", days=9).together}"\nca = "{authority.ca}"\n'
    path = tmp_path / "weir.toml"
    path.write_text(NOTHING_RUNS.format(port=0) + tls + 'write_names = ["weir-*"]\n')
    assert main(["doctor", str(path)]) == 1  # nothing runs
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " admin.tls: " in line]
    assert line.startswith("warn  admin.tls: the certificate (for ") and "expires in 9 days" in line


def test_doctor_file_with_a_loop_is_a_sentence_and_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "weir.toml"
    path.write_text(NOTHING_RUNS.format(port=1))
    status, error = failing(capsys, "doctor", str(path))
    assert (status, "connections would loop" in error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check"], "give the file to check."),
        (["check", "{file}", "--config", "{file}"], "give one file, with or without --config."),
        (["check", "--live", "{file}", "--hosts-file", "/none"], "--hosts-file /none: cannot be read: No such file"),
    ],
)
def test_check_wrong_usage_is_a_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], file: str, arguments: list[str], said: str
) -> None:
    status, error = failing(capsys, *(argument.format(file=file) for argument in arguments))
    assert (status, error.startswith(said)) == (2, True)
