# SPDX-License-Identifier: Apache-2.0
"""Commands under test: those that fail, files for them, and a stand-in for the sidecars they talk to."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.cli.main import main

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
        status, answer = self.server.answers[self.path.partition("?")[0]]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PATCH = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that fails; return its status and its one sentence on stderr."""
    status = main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("weir: ")
    assert error.count("\n") == 1
    return status, error.removeprefix("weir: ").strip()


GOOD = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"
replicas_from = ["127.0.0.0/8"]
[[egress]]
peer = 2
listen = "127.0.1.2:9092"
upstream = "127.0.0.1:9502"
"""


def config(folder: Path, text: str = GOOD) -> str:
    file = folder / "weir.toml"
    file.write_text(text)
    return str(file)
