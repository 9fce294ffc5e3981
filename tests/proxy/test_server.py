# SPDX-License-Identifier: Apache-2.0
"""The sidecar as a process: what it says at its start, its signals, and its exit status."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.proxy import server
from weir.proxy.capture.requirements import advice_for_root
from weir.proxy.config.load import OwnBroker, parse_config
from weir.proxy.config.tables import Cluster, Config
from weir.proxy.event_loop import new_event_loop
from weir.proxy.sidecar import Sidecar

DEADLINE_SECONDS = 10


class Process:
    """`weir run` with `text` as its file; its log is read line by line."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        file.write_text(text)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "weir", "run", "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._arrived: queue.Queue[str] = queue.Queue()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.child.stderr is not None
        with self.child.stderr as log:
            for line in log:
                self._arrived.put(line)
        self._arrived.put("")

    def until(self, part: str) -> str:
        """Read the log up to the next line that holds `part`; a line that does not come in time fails."""
        while line := self._arrived.get(timeout=DEADLINE_SECONDS):
            self.lines.append(line)
            if part in line:
                return line
        raise AssertionError(f"the process ended without {part!r}:\n{''.join(self.lines)}")

    def until_ended(self) -> None:
        """Wait until nobody writes the log any more: not those either that took over."""
        self._reading.join(DEADLINE_SECONDS)
        assert not self._reading.is_alive()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        self._reading.join()

    def admin_port(self) -> int:
        found = re.search(r"listen=127\.0\.0\.1:(\d+)", self.until("role=admin"))
        assert found is not None
        return int(found[1])

    def end(self, number: signal.Signals) -> int:
        self.child.send_signal(number)
        return self.child.wait(DEADLINE_SECONDS)


def text(throttle: str = "", more: str = "") -> str:
    return f"""
    broker_id = 1
    [[ingress]]
    listen = "127.0.0.1:0"
    upstream = "127.0.0.1:1"
    [admin]
    listen = "127.0.0.1:0"
    {more}
    [throttle]
    {throttle}
    """


@pytest.fixture
def run(tmp_path: Path) -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def start(run: list[Process], file: Path, content: str) -> Process:
    run.append(Process(file, content))
    return run[-1]


def throttle_of(port: int) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    connection.request("GET", "/v1/throttle")
    shown: dict[str, object] = json.loads(connection.getresponse().read())
    connection.close()
    return shown


RATE = '"leader.replication.throttled.rate"'


@pytest.mark.long
@pytest.mark.newest
def test_server_reloads_on_sighup_and_ends_on_sigterm(run: list[Process], tmp_path: Path) -> None:
    """It refuses a bad file, and keeps what is in force."""
    process = start(run, tmp_path / "weir.toml", text(f"{RATE} = 5"))
    assert "role=ingress side=leader" in process.until("event=listening")
    port = process.admin_port()
    assert throttle_of(port)["leader.replication.throttled.rate"] == 5

    process.file.write_text(text(f"{RATE} = 6"))
    process.child.send_signal(signal.SIGHUP)
    assert "changed=throttle needs_restart=nothing" in process.until("event=config_reloaded")
    assert throttle_of(port)["leader.replication.throttled.rate"] == 6

    process.file.write_text(text(f"{RATE} = -6"))
    process.child.send_signal(signal.SIGHUP)
    assert "throttle.leader.replication.throttled.rate" in process.until("event=config_refused")
    assert throttle_of(port)["leader.replication.throttled.rate"] == 6

    # At rest it needs two thirds of the 80 MB that it may take under load; most, 54 MB, on Python 3.14.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.child.pid}/status").read_text())
    assert peak is not None
    assert int(peak[1]) < 56_000
    assert process.end(signal.SIGTERM) == 0
    process.until("event=stopped")
    assert "Traceback" not in "".join(process.lines)


async def test_server_counts_a_reload_with_a_bug_and_does_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded: list[Config | Exception] = [ZeroDivisionError("bug"), parse_config(text(f"{RATE} = 7"))]

    def load(path: Path, own_broker: OwnBroker) -> Config:
        assert own_broker(9092, Cluster(bootstrap_servers=())) == 1, "a running sidecar asks nobody"
        found = loaded.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(server, "load_config", load)
    sidecar, asked = Sidecar(parse_config(text()), "1"), asyncio.Event()
    reloading = asyncio.create_task(server._reload_when_asked(sidecar, Path("weir.toml"), asked))
    async with asyncio.timeout(DEADLINE_SECONDS):
        for result in ("refused", "ok"):
            asked.set()
            while not sidecar.process.reloads[result]:  # noqa: ASYNC110 - the file is read in a thread
                await asyncio.sleep(0.001)
    reloading.cancel()
    (line,) = (record.__dict__["weir_fields"] for record in caplog.records if record.msg == "reload_failed")
    assert line["error"] == "ZeroDivisionError('bug')"
    assert "test_server.py:" in line["at"]
    assert sidecar.sides[0].throttle.settings.rate == 7


@pytest.mark.long
@pytest.mark.newest
def test_server_ends_on_sigint_with_status_0_and_logs_json(run: list[Process], tmp_path: Path) -> None:
    process = start(run, tmp_path / "weir.toml", text(more="[log]\njson = true"))
    event = json.loads(process.until("admin"))
    assert (event["event"], event["level"], event["role"]) == ("listening", "info", "admin")
    assert process.end(signal.SIGINT) == 0


@pytest.mark.long
@pytest.mark.newest
def test_server_second_signal_cuts_the_drain_short_status_1(run: list[Process], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        port = upstream.getsockname()[1]
        content = text(more="[limits]\ndrain_seconds = 600").replace("127.0.0.1:1", f"127.0.0.1:{port}")
        process = start(run, tmp_path / "weir.toml", content)
        found = re.search(r"listen=127\.0\.0\.1:(\d+)", process.until("role=ingress"))
        assert found is not None
        process.admin_port()
        with socket.create_connection(("127.0.0.1", int(found[1]))) as client:
            client.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
            accepted, _ = upstream.accept()
            with accepted:
                assert accepted.recv(100) != b""
                process.child.send_signal(signal.SIGTERM)
                process.until("event=draining")
                assert process.end(signal.SIGTERM) == 1


@pytest.mark.long
@pytest.mark.newest
def test_server_address_that_is_taken_fails_with_one_sentence(run: list[Process], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        content = text().replace('listen = "127.0.0.1:0"', f'listen = "{address}"', 1)
        process = start(run, tmp_path / "weir.toml", content)
        sentence = f"weir: ingress[0].listen: cannot listen on {address}: Address already in use.\n"
        assert process.until("weir:") == sentence
        assert process.child.wait(DEADLINE_SECONDS) == 1
        assert process.lines == [sentence]


def test_server_event_loop_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("asyncio", "uvloop"):
        monkeypatch.setenv("WEIR_EVENT_LOOP", name)
        loop = new_event_loop()
        loop.close()
        if name == "asyncio":
            assert type(loop).__module__.startswith("asyncio")
        else:
            pytest.importorskip("uvloop")
            assert type(loop).__module__.startswith("uvloop")


def test_server_raises_the_soft_limit_of_files_to_the_hard_one() -> None:
    """In a process of its own: a limit that was raised stays."""
    script = (
        "import resource; from weir.proxy.event_loop import raise_descriptor_limit as up;"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard));"
        "print(up() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("user", "captures", "advice"),
    [(0, False, "a user of its own: it needs no privileges"), (0, True, "CAP_NET_ADMIN alone"), (10001, True, None)],
)
def test_server_advises_against_root(user: int, captures: bool, advice: str | None) -> None:
    given = advice_for_root(user, captures=captures)
    assert given is None if advice is None else advice in (given or "")


@pytest.mark.long
@pytest.mark.newest
def test_server_says_once_that_it_runs_as_root(run: list[Process], tmp_path: Path) -> None:
    process = start(run, tmp_path / "weir.toml", text())
    process.until("role=admin")
    process.end(signal.SIGTERM)
    process.until("event=stopped")
    assert sum("event=running_as_root" in line for line in process.lines) == (os.geteuid() == 0)
