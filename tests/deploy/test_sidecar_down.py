# SPDX-License-Identifier: Apache-2.0
"""A sidecar that is killed is told within 30 s, with the intervals of deploy/."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.deploy.files import needs
from tests.deploy.prometheus import Prometheus, prometheus
from weir.lab.network import LOOPBACK, Ports
from weir.lab.options import weir_run

PROMISED_SECONDS = 30.0


@contextmanager
def sidecar(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A sidecar whose broker is not there, and its admin address."""
    with Ports() as ports:
        listen, upstream, admin = (f"{LOOPBACK}:{ports.take()}" for _ in range(3))
        config = folder / "weir.toml"
        config.write_text(
            f'broker_id = 1\n[[ingress]]\nlisten = "{listen}"\nupstream = "{upstream}"\n[admin]\nlisten = "{admin}"\n'
        )
        with subprocess.Popen(weir_run(config), stderr=subprocess.DEVNULL) as process:
            try:
                yield process, admin
            finally:
                process.kill()


def wait_for(server: Prometheus, expression: str, seconds: float) -> float:
    """Wait until an expression finds something; returns how long it took (s)."""
    begun = monotonic()
    while not server.query(expression):
        assert monotonic() - begun < seconds, expression
        sleep(0.2)
    return monotonic() - begun


@pytest.mark.slow
@needs("prometheus")
def test_a_killed_sidecar_is_told_within_30_seconds(tmp_path: Path) -> None:
    with sidecar(tmp_path) as (process, address), prometheus({1: address}, hurried=False) as server:
        wait_for(server, "up == 1", 30)
        process.kill()
        took = wait_for(server, 'ALERTS{alertname="WeirSidecarDown", alertstate="firing"}', 60)
        assert took <= PROMISED_SECONDS
        print(f"WeirSidecarDown fired after {took:.1f} s")
