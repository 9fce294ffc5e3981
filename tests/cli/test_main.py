"""The commands: what they print, what they send, and how they end when they cannot."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from cli.version import __version__
from proxy.config import parse_config

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

THROTTLE = {
    LEADER_RATE: 5_000_000,
    "topics": {"orders": {LEADER_REPLICAS: "*"}},
    "sources": {LEADER_RATE: "file", f"topics.orders.{LEADER_REPLICAS}": "http"},
}

SIDE = {
    "quota_bytes_per_second": 5_000_000,
    "throttled_rate_bytes_per_second": 4_900_000.0,
    "links": [{"peer": 2}],
    "held_fetches": 1,
    "partitions_left_out": 12,
    "lag": {"messages": 345, "max_seconds": 6.78},
}
STATUS = {
    "broker_id": 1,
    "ready": False,
    "not_ready": ["upstream 127.0.0.1:1 cannot be reached"],
    "sides": {"leader": SIDE},
}


class Admin(ThreadingHTTPServer):
    """Stands in for a sidecar's admin server: records requests, answers with `answers[path]`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, bytes]] = {
            "/v1/throttle": (200, json.dumps(THROTTLE).encode()),
            "/v1/status": (200, json.dumps(STATUS).encode()),
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Admin

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, json.loads(body) if body else None))
        status, answer = self.server.answers[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PATCH = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def admins() -> Iterator[list[Admin]]:
    servers = [Admin(), Admin()]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    yield servers
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def admin(admins: list[Admin]) -> Admin:
    return admins[0]


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.server_close()
    return f"127.0.0.1:{server.server_address[1]}"


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that fails; return its status and its one sentence on stderr."""
    status = main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("weir: ")
    assert error.count("\n") == 1
    return status, error.removeprefix("weir: ").strip()


# Usage


def test_weir_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"weir {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "weir --help"),
        (["throttle"], "weir throttle --help"),
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


def test_weir_as_a_module_exits_with_the_commands_status(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "check", "--config", str(tmp_path / "none.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"weir: {tmp_path}/none.toml: cannot be read: No such file or directory.\n"


# run and check

GOOD = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"
[[egress]]
peer = 2
listen = "127.0.1.2:9092"
upstream = "127.0.0.1:9502"
"""


def config(folder: Path, text: str = GOOD) -> str:
    file = folder / "weir.toml"
    file.write_text(text)
    return str(file)


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
    assert main(["check", "--config", config(tmp_path, f'{GOOD}\n[admin]\nlisten = "0.0.0.0:9690"')]) == 0
    assert capsys.readouterr().err == (
        "note: admin.listen is 0.0.0.0:9690, which is no loopback address: the admin server has no authentication, and"
        " whoever reaches it can change the throttle.\n"
    )


# status


def test_status_is_a_table_of_sides(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["status", "--admin", admin.address]) == 0
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if " leader " in line)
    assert row == [admin.address, "1", "leader", "5", "MB/s", "4.9", "MB/s", "1", "1", "12", "345", "6.8", "no"]
    assert f"{admin.address} is not ready: upstream 127.0.0.1:1 cannot be reached." in out


def test_status_json_has_an_entry_for_each_sidecar(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], nobody: str
) -> None:
    first, second = (server.address for server in admins)
    assert main(["status", "--json", "--admin", first, "--admin", nobody, "--admin", second]) == 1
    captured = capsys.readouterr()
    entries = json.loads(captured.out)
    assert [entry["admin"] for entry in entries] == [first, nobody, second]
    assert entries[0]["status"] == entries[2]["status"] == STATUS
    assert captured.err == f"weir: no sidecar answers at {nobody}: Connection refused.\n"
    assert entries[1] == {"admin": nobody, "error": f"no sidecar answers at {nobody}: Connection refused"}


def test_status_admin_address_may_come_from_the_configuration(
    capsys: pytest.CaptureFixture[str], admin: Admin, tmp_path: Path
) -> None:
    """A wildcard is an address to listen on; 127.0.0.1 is where it is reached."""
    port = admin.address.partition(":")[2]
    file = config(tmp_path, f'{GOOD}\n[admin]\nlisten = "0.0.0.0:{port}"')
    assert main(["status", "--json", "--config", file]) == 0
    assert json.loads(capsys.readouterr().out)[0]["admin"] == admin.address


@pytest.mark.parametrize("answer", [(200, b"<html>"), (500, b"{}"), (200, b"\xff")])
def test_status_of_what_is_no_sidecar_fails_with_a_sentence(
    capsys: pytest.CaptureFixture[str], admin: Admin, answer: tuple[int, bytes]
) -> None:
    admin.answers["/v1/status"] = answer
    status, error = failing(capsys, "status", "--admin", admin.address)
    assert status == 1
    assert admin.address in error


# throttle


def test_throttle_show_is_a_table_with_sources(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["throttle", "show", "--admin", admin.address]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if admin.address in line]
    assert rows == [
        [admin.address, LEADER_RATE, "5000000", "bytes/s", "(5", "MB/s)", "file"],
        [admin.address, FOLLOWER_RATE, "none"],
        [admin.address, "orders:", LEADER_REPLICAS, "*", "http"],
    ]


def test_throttle_show_json_is_what_the_sidecar_shows(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["throttle", "show", "--json", "--admin", admin.address]) == 0
    assert json.loads(capsys.readouterr().out) == [{"admin": admin.address, "throttle": THROTTLE}]


@pytest.mark.parametrize(
    ("options", "change"),
    [
        (["--leader-rate", "5MB"], {LEADER_RATE: 5_000_000}),
        (["--leader-rate", "0", "--follower-rate", "500k"], {LEADER_RATE: 0, FOLLOWER_RATE: 500_000}),
        (["--follower-rate", "none"], {FOLLOWER_RATE: None}),
        (
            ["--topic", "orders", "--leader-replicas", "*", "--follower-replicas", "0:2"],
            {"topics": {"orders": {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:2"}}},
        ),
        (
            ["--topic", "a", "--topic", "b", "--leader-replicas", "1:2, 0:1"],
            {"topics": {"a": {LEADER_REPLICAS: "0:1,1:2"}, "b": {LEADER_REPLICAS: "0:1,1:2"}}},
        ),
        (["--topic", "a", "--leader-replicas", "none"], {"topics": {"a": {LEADER_REPLICAS: None}}}),
    ],
)
def test_throttle_set_sends_what_is_named_to_every_sidecar(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], options: list[str], change: dict[str, Any]
) -> None:
    addresses = [word for server in admins for word in ("--admin", server.address)]
    assert main(["throttle", "set", *options, *addresses]) == 0
    assert [server.requests for server in admins] == [[("PATCH", "/v1/throttle", change)]] * 2
    assert "5000000 bytes/s (5 MB/s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "nothing to set"),
        (["--leader-rate", "5 parsecs"], "--leader-rate: '5 parsecs' is not a rate"),
        (["--leader-rate", "0.5"], "whole number"),
        (["--topic", "orders"], "--leader-replicas or --follower-replicas is missing"),
        (["--leader-replicas", "*"], "--topic is missing"),
        (["--topic", "a", "--leader-replicas", "0:x"], "--leader-replicas: '0:x'"),
    ],
)
def test_throttle_set_bad_value_is_refused_before_any_sidecar_is_asked(
    capsys: pytest.CaptureFixture[str], admin: Admin, options: list[str], sentence: str
) -> None:
    status, error = failing(capsys, "throttle", "set", *options, "--admin", admin.address)
    assert status == 2
    assert sentence in error
    assert admin.requests == []


def test_throttle_set_refused_by_the_sidecar_says_its_reason(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    admin.answers["/v1/throttle"] = (400, b'{"error": "topics.a b: is no name.", "field": "topics.a b"}')
    arguments = ["throttle", "set", "--topic", "a b", "--leader-replicas", "*", "--admin", admin.address]
    assert failing(capsys, *arguments) == (2, f"the sidecar at {admin.address} refused: topics.a b: is no name.")


def test_throttle_set_reaches_the_others_when_one_does_not_answer(
    capsys: pytest.CaptureFixture[str], admin: Admin, nobody: str
) -> None:
    assert main(["throttle", "set", "--leader-rate", "1", "--admin", nobody, "--admin", admin.address]) == 1
    assert len(admin.requests) == 1
    captured = capsys.readouterr()
    assert admin.address in captured.out
    assert captured.err == f"weir: no sidecar answers at {nobody}: Connection refused.\n"


def test_throttle_clear_removes_all_or_the_topics_named(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["throttle", "clear", "--admin", admin.address]) == 0
    assert main(["throttle", "clear", "--topic", "orders", "--admin", admin.address]) == 0
    assert admin.requests == [
        ("DELETE", "/v1/throttle", None),
        ("PATCH", "/v1/throttle", {"topics": {"orders": None}}),
    ]


# demo


def test_demo_without_the_lab_extra_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lab.demo", None)
    status, error = failing(capsys, "demo")
    assert status == 1
    assert error.endswith("pip install 'kafka-weir[lab]'.")


def test_demo_passes_its_arguments_on_and_returns_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    class Demo:
        arguments: list[str] | None = None

        @classmethod
        def main(cls, arguments: list[str]) -> int:
            cls.arguments = arguments
            return 1

    monkeypatch.setitem(sys.modules, "lab.demo", Demo)
    assert main(["demo", "--fast", "--help"]) == 1
    assert Demo.arguments == ["--fast", "--help"]


def test_run_path_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """The sidecar's memory: typer, rich, aiokafka and the lab's packages are for other commands."""
    script = (
        "import sys, proxy.server; proxy.server.run_sidecar = lambda *rest: 0; from cli.main import main;"
        f"assert main(['run', '--config', {config(tmp_path)!r}]) == 0; print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in done.stdout.split()}
    assert {"aiohttp", "cli"} <= loaded
    needless = {"typer", "pydantic", "rich", "aiokafka", "kafka", "pyspark", "matplotlib", "numpy", "lab", "control"}
    assert loaded.isdisjoint(needless)


@pytest.mark.parametrize("words", [["--config", "FILE"], ["--config=FILE"], ["--config", "OTHER", "--config", "FILE"]])
def test_run_in_any_form_runs_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]) -> None:
    """The short form that starts every sidecar does what typer's does."""
    ran: list[object] = []

    def run_sidecar(*arguments: object) -> int:
        ran.append(arguments)
        return 7

    monkeypatch.setattr("proxy.server.run_sidecar", run_sidecar)
    file = config(tmp_path)
    assert main(["run", *(word.replace("FILE", file) for word in words)]) == 7
    assert ran == [(parse_config(GOOD), Path(file), __version__)]
