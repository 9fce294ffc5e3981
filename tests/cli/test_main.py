# SPDX-License-Identifier: Apache-2.0
"""The command line itself: its usage, `run`, `check` and `demo`, and how they end when they cannot."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

from tests.cli.commands import GOOD, config, failing
from tests.fakes.pki import Authority
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.cli.demo import is_offered
from weir.cli.main import main
from weir.cli.version import __version__
from weir.proxy.config.load import parse_config

needs_pyspark = pytest.mark.skipif(find_spec("pyspark") is None, reason="the demo is not offered without PySpark")
PROJECT = Path(__file__).parents[2]

# Usage


def test_weir_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"weir {__version__}\n"


@pytest.mark.long
@pytest.mark.newest
def test_weir_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: weir" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["throttle"], "weir throttle --help"),
        (["report"], "weir report --help"),
        (["plan", "--brokers", "9" * 400], "--brokers"),
        (["rnu"], "rnu"),
        (["run"], "--config"),
        (["check", "--confg", "x"], "--confg"),
        (["throttle", "set", "--leader-rate"], "--leader-rate"),
        (["throttle", "sett"], "sett"),
        (["status", "--admin", "nowhere"], "'nowhere'"),
        (["status", "extra"], "extra"),
    ],
)
def test_weir_wrong_usage_is_one_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    status, error = failing(capsys, *arguments)
    assert status == 2
    assert sentence in error
    assert error[0] != "."


@pytest.mark.long
@pytest.mark.newest
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["check", "--config", "weir.toml"]])
def test_weir_unwritable_output_is_one_sentence_and_status_1(tmp_path: Path, arguments: list[str]) -> None:
    config(tmp_path)
    with open("/dev/full", "w") as full:
        done = weir(arguments, tmp_path, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "weir: the output cannot be written: No space left on device.\n"


@pytest.mark.long
@pytest.mark.newest
def test_weir_unencodable_output_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    Path(config(tmp_path)).rename(tmp_path / "ä.toml")
    done = weir(["check", "--config", "ä.toml"], tmp_path, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1
    assert re.fullmatch(r"weir: the output cannot be written: .*ascii.*\.\n", done.stderr)


@pytest.mark.long
@pytest.mark.newest
def test_weir_closed_output_is_no_failure(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "weir", "check", "--config", config(tmp_path)])
    done = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.newest
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_weir_error_that_cannot_be_told_is_its_status_alone(tmp_path: Path, redirection: str) -> None:
    command = shlex.join([sys.executable, "-m", "weir", "check", "--config", str(tmp_path / "none.toml")])
    done = subprocess.run(["sh", "-c", f"{command} {redirection}"], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "run failed: Too many open files."),
        (OSError(errno.EIO, "Input/output error", b"/lib/module.py"), "/lib/module.py: Input/output error."),
        (OSError("no words of the system"), "run failed: no words of the system."),
    ],
)
def test_weir_system_error_names_what_failed_and_not_the_output(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: OSError,
    sentence: str,
) -> None:
    def run_sidecar(*arguments: object) -> int:
        raise error

    monkeypatch.setattr("weir.proxy.server.run_sidecar", run_sidecar)
    assert failing(capsys, "run", "--config", config(tmp_path)) == (1, sentence)


def weir(
    arguments: list[str], folder: Path, *, stdout: int | IO[str], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `weir` as a process in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "weir", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **(env or {})},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.newest
def test_weir_as_a_module_exits_with_the_commands_status(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weir", "check", "--config", str(tmp_path / "none.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"weir: {tmp_path}/none.toml: cannot be read: No such file or directory.\n"


# run and check


def test_check_valid_file_shows_its_routes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = config(tmp_path)
    assert main(["check", "--config", file]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: valid, for broker 1.",
        "  ingress  127.0.0.1:9501 -> 127.0.0.1:9201",
        "  egress   127.0.1.2:9092 -> 127.0.0.1:9502 (peer 2)",
        "  admin    127.0.0.1:9690",
    ]


def test_check_json_is_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = config(tmp_path)
    assert main(["check", "--config", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": file, "valid": True, "broker_id": 1, "notes": []}


@pytest.mark.parametrize("command", ["check", "run"])
def test_bad_file_is_one_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    file = config(tmp_path, GOOD.replace("127.0.0.1:9201", "localhost:9501"))
    status, error = failing(capsys, command, "--config", file)
    assert status == 2
    assert error.startswith(f"{file}: ingress[0].upstream: localhost:9501 is this sidecar's own ingress[0].listen")


@pytest.mark.parametrize(
    ("throttle", "note"),
    [
        (f'"{LEADER_RATE}" = 5', "no topic lists a throttled replica on broker 1"),
        (f'"{LEADER_RATE}" = 5\n[throttle.topics.a]\n"{LEADER_REPLICAS}" = "0:2"', "no topic lists"),
        (f'[throttle.topics.a]\n"{FOLLOWER_REPLICAS}" = "*"', f"{FOLLOWER_RATE} is not set"),
    ],
)
def test_check_throttle_that_throttles_nothing_is_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, throttle: str, note: str
) -> None:
    assert main(["check", "--config", config(tmp_path, f"{GOOD}\n[throttle]\n{throttle}")]) == 0
    noted = capsys.readouterr().err
    assert noted.count("note: ") == 1
    assert note in noted


def test_check_admin_that_others_reach_is_noted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        main(
            ["check", "--config", config(tmp_path, f'{GOOD}\n[admin]\nlisten = "0.0.0.0:9690"\nwithout_tokens = true')]
        )
        == 0
    )
    assert capsys.readouterr().err == (
        "note: admin.listen is 0.0.0.0:9690, and admin.without_tokens is set: whoever reaches it can change the"
        " throttle.\n"
    )


def test_check_tls_that_hides_the_followers_side_is_noted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    issued = Authority(tmp_path / "keys").issue("broker-1.test")
    tls = f'[ingress.tls]\ncertificate = "{issued.certificate}"\nkey = "{issued.key}"\n\n[[egress]]'
    assert main(["check", "--config", config(tmp_path, GOOD.replace("[[egress]]", tls))]) == 0
    shown = capsys.readouterr()
    assert "  ingress  127.0.0.1:9501 -> 127.0.0.1:9201, TLS ends here\n" in shown.out
    assert "connections of peer 2: they pass as they are, and no quota counts them" in shown.err
    assert 'kept_at = "leaders"' in shown.err
    tls = tls.replace(
        "[[egress]]", 'ca = "' + str(tmp_path / "keys" / "ca.pem") + '"\n[ingress.upstream_tls]\n[[egress]]'
    )
    assert main(["check", "--config", config(tmp_path, GOOD.replace("[[egress]]", tls))]) == 0
    assert "need [cluster] with properties" in capsys.readouterr().err


def test_check_notes_a_peer_without_a_certificate_beside_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    issued = Authority(tmp_path / "keys").issue("broker-2.test")
    other = '\n[[egress]]\npeer = 3\nlisten = "127.0.1.3:9092"\nupstream = "127.0.0.1:9503"\n'
    tls = f'[egress.tls]\ncertificate = "{issued.together}"\n[egress.upstream_tls]\nca = "{tmp_path}/keys/ca.pem"\n'
    whole = GOOD.replace('upstream = "127.0.0.1:9502"\n', f'upstream = "127.0.0.1:9502"\n{tls}{other}')
    assert main(["check", "--config", config(tmp_path, whole)]) == 0
    shown = capsys.readouterr().err
    assert "the follower's side has no certificate for connections of peer 3: they pass as they are" in shown
    assert "egress.upstream_tls is for what brokers send" in shown


def test_check_capture_with_tls_is_shown_and_doubts_are_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Noted is what may not be meant, as that all others on the port are refused."""
    authority = Authority(tmp_path / "keys")
    pem = f'certificate = "{authority.issue("broker-1").together}"\nca = "{authority.ca}"\n'
    head = 'broker_id = 1\n[cluster]\nbootstrap_servers = "127.0.0.1:9091"\n'
    tls = f'[capture.tls]\n{pem}client_auth = "required"\nallowed_names = ["broker-*"]\n[capture.upstream_tls]\n'
    text = f'{head}[capture]\nport = 9091\nfrom = "anyone"\n{tls}'
    assert main(["check", "--config", config(tmp_path, text)]) == 0
    shown = capsys.readouterr()
    line = "  capture  port 9091, leader and follower, from anyone, always, TLS on both ends of the leader's side\n"
    assert line in shown.out
    assert "capture.upstream_tls is for what brokers send" in shown.err
    assert 'kept_at = "leaders"' in shown.err
    assert "all others on port 9091 are refused" in shown.err
    peers = f"[capture.peer_tls]\n{pem}[capture.peer_upstream_tls]\n"
    assert main(["check", "--config", config(tmp_path, text + peers)]) == 0
    shown = capsys.readouterr()
    assert "TLS on both ends of the leader's and the follower's side\n" in shown.out
    assert 'kept_at = "leaders"' not in shown.err
    text = f'{head}[capture]\nport = 9091\n[tls]\n{pem}allowed_names = ["broker-*"]\nmode = "require"\n'
    assert main(["check", "--config", config(tmp_path, text)]) == 0
    shown = capsys.readouterr()
    assert "from brokers, always, TLS between sidecars required\n" in shown.out
    assert "the kernel does not fail open" in shown.err


# demo


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that has all packages of the demo but one."""
    monkeypatch.setattr("weir.cli.demo.find_spec", lambda name: None if name == "matplotlib" else object())


@pytest.mark.usefixtures("without_matplotlib")
def test_demo_without_its_packages_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(capsys, "demo") == (
        1,
        "the demo needs packages that are not installed (matplotlib): pip install 'kafka-weir[demo]'.",
    )
    assert not is_offered()


@needs_pyspark
def test_demo_is_not_offered_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert not is_offered()
    monkeypatch.setenv("JAVA_HOME", "/usr/lib/jvm")
    assert is_offered()


@needs_pyspark
@pytest.mark.parametrize(
    ("words", "kind", "options"),
    [
        ((), "move", {"fast": False, "as_json": False}),
        (("--fast", "--json"), "move", {"fast": True, "as_json": True}),
        (("--capture",), "capture", {"fast": False, "as_json": False}),
        (("--connect",), "connect", {"fast": False, "as_json": False}),
    ],
)
def test_demo_is_that_of_its_options_and_its_status_is_returned(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kind: str, options: dict[str, bool]
) -> None:
    asked: list[object] = []

    def shown(kind: str, out: Path, **options: bool) -> int:
        asked.extend((kind, out, options))
        return 1

    monkeypatch.setattr("weir.lab.demo.main", shown)
    assert main(["demo", *words, "--out", "charts"]) == 1
    assert asked == [kind, Path("charts"), options]


@pytest.mark.parametrize("words", [("--capture", "--connect"), ("--capture", "--json"), ("--connect", "--fast")])
def test_demo_refuses_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert failing(capsys, "demo", *words)[0] == 2


@pytest.mark.long
@pytest.mark.newest
def test_run_path_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """The sidecar's memory: typer, rich, aiokafka and the lab's packages are for other commands."""
    script = (
        "import sys, weir.proxy.server; from weir.cli.main import main; "
        "weir.proxy.server.run_sidecar = lambda *rest: 0; "
        f"assert main(['run', '--config', {config(tmp_path)!r}]) == 0; print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"aiohttp", "weir.cli"} <= loaded
    needless = {"typer", "pydantic", "rich", "aiokafka", "kafka", "pyspark", "matplotlib", "numpy"}
    needless |= {"weir.lab", "weir.control"}
    assert loaded.isdisjoint(needless)


@pytest.mark.parametrize("words", [["--config", "FILE"], ["--config=FILE"], ["--config", "OTHER", "--config", "FILE"]])
def test_run_in_any_form_runs_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]) -> None:
    """The short form that starts every sidecar does what typer's does."""
    ran: list[object] = []

    def run_sidecar(*arguments: object) -> int:
        ran.append(arguments)
        return 7

    monkeypatch.setattr("weir.proxy.server.run_sidecar", run_sidecar)
    file = config(tmp_path)
    assert main(["run", *(word.replace("FILE", file) for word in words)]) == 7
    assert ran == [(parse_config(GOOD), Path(file), __version__)]


@pytest.mark.parametrize(("more", "is_noted"), [("", True), ('[cluster]\nbootstrap_servers = "127.0.0.1:9092"', False)])
def test_check_ingress_where_anyone_may_be_a_replica_is_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: str, *, is_noted: bool
) -> None:
    anyone = "".join(line for line in GOOD.splitlines(keepends=True) if "replicas_from" not in line)
    assert main(["check", "--config", config(tmp_path, f"{anyone}\n{more}")]) == 0
    assert ("note: ingress[0]: without [cluster] or replicas_from" in capsys.readouterr().err) == is_noted
