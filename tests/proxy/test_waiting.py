# SPDX-License-Identifier: Apache-2.0
"""`weir run --wait`: a sidecar that captures starts whatever is missing, says what it is, and takes it up."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.page.made_up import waiting as waiting_status
from weir.cli.main import main

pytestmark = [pytest.mark.long, pytest.mark.newest]

DEADLINE_SECONDS = 15


class Waiting:
    """`weir run --wait` without the right to capture; its file is written by the test."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "weir.toml"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / "log"

    def text(self, more: str = "", admin: str = "") -> str:
        return f"""
        broker_id = "env:POD_NAME"
        {more}
        [admin]
        listen = "127.0.0.1:{self.port}"
        {admin}
        """

    def start(self, text: str, **environment: str) -> None:
        self.file.write_text(text)
        with self.log.open("w") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "weir", "run", "--wait", "--config", str(self.file)],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **environment},
            )

    def get(self, path: str) -> tuple[int, str]:
        """Ask as soon as somebody listens."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode()
            except OSError:
                assert time.monotonic() < deadline, self.log.read_text()
                assert self.child.poll() is None, self.log.read_text()
                time.sleep(0.05)
            finally:
                connection.close()

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.get("/v1/status")[1])
        return told

    def until_reason(self, part: str) -> str:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while part not in (reason := "; ".join(json.loads(self.get("/readyz")[1]).get("reasons", ()))):
            assert time.monotonic() < deadline, reason
            time.sleep(0.1)
        return reason


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    waiting = Waiting(tmp_path)
    yield waiting
    waiting.child.kill()
    waiting.child.wait()


CAPTURE = '[capture]\nport = 9092\n[cluster]\nbootstrap_servers = "127.0.0.1:1"\n'


def test_capturing_sidecar_tells_what_is_missing_until_there(
    waiting: Waiting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    tokens = f'read_token_file = "{token}"\nwrite_token_file = "{token}"'
    waiting.start(waiting.text(CAPTURE, tokens).replace("[capture]", "[captur]"), POD_NAME="kafka-3")
    assert waiting.get("/healthz") == (200, '{"status":"ok"}\n')
    waiting.until_reason('captur: is not a known key; did you mean "capture"?')
    status, told = waiting.get("/readyz")
    assert status == 503
    assert "did you mean" in told
    scraped = waiting.get("/metrics")[1].splitlines()
    assert {'weir_trouble{what="not_started"} 1.0', "weir_captured 0.0", "weir_ready 0.0"} <= set(scraped)
    assert waiting.status()["troubles"].keys() == {"not_started"}
    assert waiting.status().keys() == waiting_status().keys()
    assert main(["status", "--admin", f"127.0.0.1:{waiting.port}"]) == 0
    assert capsys.readouterr().out.startswith("A sidecar: ")
    assert waiting.get("/v1/throttle")[0] == 503
    assert "event=not_started" in waiting.log.read_text()
    # One thing after the other: the next is told as soon as the first is there.
    waiting.file.write_text(waiting.text(CAPTURE, tokens))
    waiting.until_reason("No such file")
    token.write_text("t" * 32)
    has_tools = shutil.which("ss") is not None and find_library("nftables") is not None
    may_capture = os.geteuid() == 0 and has_tools
    waiting.until_reason("the cluster has not told the brokers' addresses" if may_capture else "capture needs")
    waiting.child.send_signal(signal.SIGTERM)
    assert waiting.child.wait(DEADLINE_SECONDS) == 0


def test_a_variable_that_is_missing_is_waited_for_too(waiting: Waiting) -> None:
    waiting.start(waiting.text(CAPTURE), POD_NAME="kafka")
    waiting.until_reason("ends with none")


def test_a_sidecar_in_its_brokers_path_ends(waiting: Waiting) -> None:
    waiting.start(waiting.text('[[ingress]]\nlisten = "127.0.0.1:0"\nupstreem = "127.0.0.1:1"\n'), POD_NAME="kafka-3")
    assert waiting.child.wait(DEADLINE_SECONDS) == 2
    assert "upstreem" in waiting.log.read_text()


def test_a_sidecar_that_lacks_nothing_runs(waiting: Waiting) -> None:
    waiting.start(waiting.text('[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:1"\n'), POD_NAME="kafka-3")
    assert waiting.status()["broker_id"] == 3
    assert waiting.status()["state"] == "serving"


def test_a_bug_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    """What fails as nobody thought of is waited for too; each time another, so that each is told."""
    (tmp_path / "weir.toml").write_text('[capture]\n[admin]\nlisten = "127.0.0.1:0"\n')
    program = f"""
import itertools, os, signal
from pathlib import Path
from weir.proxy import waiting
waiting.LOOK_SECONDS = waiting._AGAIN_SECONDS = 0.1
tries = itertools.count()
def load():
    if next(tries) == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    raise RuntimeError("a bug")
raise SystemExit(waiting.run_when_ready(Path({str(tmp_path / "weir.toml")!r}), load, "1"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("event=not_started") == 1
    assert "RuntimeError('a bug')" in done.stderr
