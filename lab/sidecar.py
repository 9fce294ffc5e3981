# SPDX-License-Identifier: Apache-2.0
"""One broker's weir sidecar in a process of its own, and its admin HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from weir.lab.errors import LabError, Timeout
from weir.lab.processes import Process, Supervisor, tail

_POLL_SECONDS = 0.05

PROJECT: Final = Path(__file__).resolve().parent.parent
"""The folder above the rooms, in which `python -m weir` runs."""


class AdminRefused(LabError):
    """A sidecar's admin HTTP answered with an error. Fields: `status`, `body` (text)."""

    def __init__(self, name: str, call: str, status: int, body: str) -> None:
        self.status = status
        self.body = body
        super().__init__(f"{name}: {call} was answered with {status}: {body.strip()}")


class Sample(NamedTuple):
    """One line of /metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metrics:
    """What one scrape of /metrics gave."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [
            Sample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def samples(self, name: str, **labels: object) -> list[Sample]:
        """Return the samples of a metric whose labels include `labels`."""
        wanted = {key: str(value) for key, value in labels.items()}
        return [sample for sample in self._samples if sample.name == name and wanted.items() <= sample.labels.items()]

    def value(self, name: str, **labels: object) -> float:
        """Return the sum of the samples that match; 0.0 when there is none (a counter that was never counted)."""
        return sum(sample.value for sample in self.samples(name, **labels))


class Sidecar(Process):
    """The sidecar of broker `broker_id`, and its admin HTTP at `admin_address` (host:port).

    `config` is its TOML file, to be rewritten before SIGHUP or a restart.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        broker_id: int,
        command: Sequence[str],
        config: Path,
        log: Path,
        admin_address: str,
        env: Mapping[str, str],
    ) -> None:
        super().__init__(supervisor, f"the sidecar of broker {broker_id}", command, log, PROJECT, env)
        self.broker_id = broker_id
        self.config = config
        self.admin_address = admin_address

    def http(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None, seconds: float = 10
    ) -> tuple[int, str]:
        """Make one call of the admin HTTP and return (status, body as text), whatever the status. Raises OSError."""
        connection = http.client.HTTPConnection(self.admin_address, timeout=seconds)
        try:
            data = None if body is None else body if isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def throttle(self) -> Any:
        """GET /v1/throttle."""
        return self._json("GET", "/v1/throttle")

    def put_throttle(self, table: Mapping[str, Any]) -> Any:
        """PUT /v1/throttle: `table` replaces what is in force."""
        return self._json("PUT", "/v1/throttle", table)

    def patch_throttle(self, table: Mapping[str, Any]) -> Any:
        """PATCH /v1/throttle: `table` is merged; None removes."""
        return self._json("PATCH", "/v1/throttle", table)

    def delete_throttle(self) -> Any:
        """DELETE /v1/throttle."""
        return self._json("DELETE", "/v1/throttle")

    def status(self) -> Any:
        """GET /v1/status."""
        return self._json("GET", "/v1/status")

    def metrics(self) -> Metrics:
        """GET /metrics, parsed."""
        status, text = self.http("GET", "/metrics")
        if status != 200:
            raise AdminRefused(self.name, "GET /metrics", status, text)
        return Metrics(text)

    def wait_until(self, path: str, seconds: float) -> None:
        """Wait until GET `path` (/healthz, /readyz) is answered with 200.

        Raises ProcessFailed (PortTaken) or Timeout.
        """
        deadline = time.monotonic() + seconds
        said = "nothing answered"
        while True:
            ended = not self.alive
            with suppress(OSError, http.client.HTTPException):
                status, said = self.http("GET", path, seconds=5)
                if status == 200:
                    return
            if ended:
                raise self.failure(f"ended with status {self.wait(0)} before {path} was 200.")
            if time.monotonic() > deadline:
                raise Timeout(f"{path} of {self.name}", seconds, f"{said.strip()}; its log ends:\n{tail(self.log)}")
            time.sleep(_POLL_SECONDS)

    def resident_bytes(self) -> tuple[int, int]:
        """Return (now, peak) of the process's resident memory in bytes, from /proc."""
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":" in line
        )
        return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024

    def _json(self, method: str, path: str, body: object = None) -> Any:
        status, text = self.http(method, path, body)
        if status >= 300:
            raise AdminRefused(self.name, f"{method} {path}", status, text)
        return json.loads(text) if text.strip() else None
