# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on loopback, with the configuration and the rules of deploy/."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.files import CONFIGURATION
from weir.lab.errors import Timeout
from weir.lab.network import LOOPBACK, Ports
from weir.lab.processes import Process, Supervisor, tail

_START_SECONDS = 30


class Prometheus(Process):
    """One server; `targets` are the sidecars' admin addresses by broker id. `hurried`: scraped each second."""

    def __init__(self, supervisor: Supervisor, targets: Mapping[int, str], port: int, hurried: bool) -> None:
        self._address = f"{LOOPBACK}:{port}"
        configuration = supervisor.folder / CONFIGURATION.name
        configuration.write_text(_configured(targets, hurried))
        command = [
            "prometheus",
            f"--config.file={configuration}",
            f"--storage.tsdb.path={supervisor.folder / 'data'}",
            f"--web.listen-address={self._address}",
        ]
        super().__init__(supervisor, "prometheus", command, supervisor.log("prometheus"))

    def get(self, path: str, **parameters: str) -> Any:
        """GET /api/v1/`path`, its data. Raises urllib.error.HTTPError for a query that does not parse."""
        encoded = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}?{encoded}", timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of everything that an expression finds now."""
        found = self.get("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def total(self, expression: str) -> float:
        """The sum of what an expression finds now; 0.0 where that is nothing."""
        return sum(value for _, value in self.query(expression))

    def wait_until_ready(self) -> None:
        """Wait until it answers. Raises ProcessFailed (PortTaken) or Timeout."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            ended = not self.alive
            try:
                self.query("vector(1)")
                return
            except OSError:
                if ended:
                    raise self.failure("ended before it was ready.") from None
                if time.monotonic() > deadline:
                    raise Timeout("the start of prometheus", _START_SECONDS, tail(self.log)) from None
            time.sleep(0.1)


@contextmanager
def prometheus(targets: Mapping[int, str], *, hurried: bool = True) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes `targets`, each second or as deploy/ says; at the end it and its data are gone."""
    supervisor = Supervisor(print)
    error: BaseException | None = None
    try:
        with Ports() as ports:
            server = Prometheus(supervisor, targets, ports.take(), hurried)
            server.start()
            server.wait_until_ready()
            yield server
    except BaseException as raised:
        error = raised
        raise
    finally:
        supervisor.end(error)


def _configured(targets: Mapping[int, str], hurried: bool) -> str:
    """The configuration of deploy/ for these sidecars: each of its targets is replaced, or left out."""
    head, *rest = CONFIGURATION.read_text().split("      - targets:")
    assert [f'["kafka{broker_id}:9690"]' in text for broker_id, text in enumerate(rest, 1)] == [True] * 3
    for broker_id, address in targets.items():
        head += f"      - targets:{rest[broker_id - 1].replace(f'kafka{broker_id}:9690', address)}"
    absolute = head.replace("  - weir-", f"  - {Path(CONFIGURATION.parent)}/weir-")
    return (
        re.sub(r"(scrape_interval|scrape_timeout|evaluation_interval): \d+s", r"\1: 1s", absolute)
        if hurried
        else absolute
    )
