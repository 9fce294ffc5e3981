# SPDX-License-Identifier: Apache-2.0
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from weir.lab.errors import ProcessFailed, Timeout
from weir.lab.processes import Supervisor
from weir.lab.sidecar import AdminRefused, Metrics, Sidecar

TEXT = """# HELP weir_replication_bytes_total Bytes
# TYPE weir_replication_bytes_total counter
weir_replication_bytes_total{side="leader",peer="2",throttled="true"} 10
weir_replication_bytes_total{side="leader",peer="3",throttled="true"} 5
weir_replication_bytes_total{side="leader",peer="3",throttled="false"} 7
# HELP weir_quota_bytes_per_second Quota
# TYPE weir_quota_bytes_per_second gauge
weir_quota_bytes_per_second{side="follower"} +Inf
"""


class Admin(BaseHTTPRequestHandler):
    """Answers as a sidecar would, and remembers what it was sent."""

    seen: list[tuple[str, str, str]] = []  # noqa: RUF012 - a handler is made by the server for each call

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.seen.append((self.command, self.path, body))
        status, text = {
            "/metrics": (200, TEXT),
            "/readyz": (503, "upstream 127.0.0.1:9201 refuses"),
            "/healthz": (200, "ok"),
            "/v1/throttle": (400, '{"error": "a rate is not negative"}') if "-1" in body else (200, body or "{}"),
        }[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def sidecar(own_temporary_folder: Path, tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar whose process is /bin/sleep and whose admin HTTP is `Admin`."""
    Admin.seen.clear()
    supervisor = Supervisor(lambda line: None)
    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        log = supervisor.log("sidecar-1")
        sidecar = Sidecar(
            supervisor, 1, ["/bin/sleep", "60"], tmp_path / "c.toml", log, f"127.0.0.1:{server.server_port}", {}
        )
        sidecar.start()
        yield sidecar
        server.shutdown()
        thread.join()
    supervisor.end()


def test_metrics_add_up_the_samples_that_match() -> None:
    metrics = Metrics(TEXT)
    assert metrics.value("weir_replication_bytes_total", side="leader", throttled="true") == 15
    assert metrics.value("weir_replication_bytes_total", peer=3) == 12
    assert metrics.value("weir_quota_bytes_per_second", side="follower") == float("inf")


def test_metric_that_was_never_counted_is_zero() -> None:
    assert Metrics(TEXT).value("weir_protocol_errors_total") == 0.0


def test_throttle_calls_use_their_methods(sidecar: Sidecar) -> None:
    table = {"leader.replication.throttled.rate": 1}
    assert sidecar.put_throttle(table) == table
    assert sidecar.patch_throttle({"leader.replication.throttled.rate": None}) is not None
    sidecar.delete_throttle()
    sidecar.throttle()
    assert [(method, json.loads(body) if body else None) for method, _, body in Admin.seen] == [
        ("PUT", table),
        ("PATCH", {"leader.replication.throttled.rate": None}),
        ("DELETE", None),
        ("GET", None),
    ]


def test_refused_throttle_is_an_error_with_what_was_said(sidecar: Sidecar) -> None:
    with pytest.raises(
        AdminRefused, match=r"broker 1: PUT /v1/throttle was answered with 400.*not negative"
    ) as refused:
        sidecar.put_throttle({"leader.replication.throttled.rate": -1})
    assert refused.value.status == 400


def test_metrics_are_read_over_http(sidecar: Sidecar) -> None:
    assert sidecar.metrics().value("weir_replication_bytes_total", peer=2) == 10


def test_waiting_for_an_answer_that_stays_503_tells_why(sidecar: Sidecar) -> None:
    sidecar.wait_until("/healthz", 30)
    with pytest.raises(Timeout, match=r"/readyz of the sidecar of broker 1.*127\.0\.0\.1:9201 refuses"):
        sidecar.wait_until("/readyz", 0)


def test_waiting_for_a_sidecar_that_ended_fails_at_once(sidecar: Sidecar) -> None:
    sidecar.kill()
    with pytest.raises(ProcessFailed, match="ended with status -9 before /readyz was 200"):
        sidecar.wait_until("/readyz", 60)


def test_resident_bytes_are_of_the_process(sidecar: Sidecar) -> None:
    now, peak = sidecar.resident_bytes()
    assert 0 < now <= peak < 100 * 2**20
