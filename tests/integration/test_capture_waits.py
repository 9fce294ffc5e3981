# SPDX-License-Identifier: Apache-2.0
"""A sidecar that captures keeps its broker from nothing: it waits beside the path, and can be taken out of it."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.captures import CAPTURES, passes_directly, unharmed
from weir.lab.hosted import PORT, HostedCluster
from weir.lab.sidecar import Sidecar

pytestmark = CAPTURES

LEADER, PEER = 1, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostedCluster]:
    with HostedCluster(2) as cluster:
        cluster.create_topic("live", {0: [LEADER, PEER]})
        yield cluster


class Sidecars:
    """A sidecar for each broker, all with the same file and the names of pods."""

    def __init__(self, cluster: HostedCluster, folder: Path) -> None:
        self.cluster = cluster
        self.config, self.token = folder / "weir.toml", folder / "token"
        self.all = {broker: self._sidecar(broker, folder) for broker in cluster.broker_ids}

    def _sidecar(self, broker: int, folder: Path) -> Sidecar:
        command = [*self.cluster._options.sidecar_command(self.config), "--wait"]
        return Sidecar(
            self.cluster._lab,
            broker,
            self.cluster.hosts.on(broker, command),
            self.config,
            folder / f"sidecar-{broker}.log",
            f"{self.cluster.hosts.address(broker)}:9690",
            {**os.environ, "POD_NAME": f"kafka-brokers-{broker}"},
        )

    def write_config(self) -> None:
        servers = ",".join(f"{self.cluster.hosts.address(broker)}:{PORT}" for broker in self.cluster.broker_ids)
        self.config.write_text(
            f'broker_id = "env:POD_NAME"\n[admin]\nlisten = "0.0.0.0:9690"\nread_token_file = "{self.token}"\n'
            f'write_token_file = "{self.token}"\n[cluster]\nbootstrap_servers = "{servers}"\npoll_seconds = 1\n'
            f"[capture]\nport = {PORT}\n"
        )

    def not_ready(self, part: str) -> bool:
        with suppress(OSError):  # between what waits and what runs nobody listens
            return all(part in sidecar.http("GET", "/readyz")[1] for sidecar in self.all.values())
        return False

    def call(self, method: str, path: str, body: object = None) -> list[dict[str, object]]:
        found = []
        for sidecar in self.all.values():
            status, text = sidecar.http(method, path, body, {"Authorization": f"Bearer {self.token.read_text()}"})
            assert status == 200, text
            found.append(json.loads(text))
        return found

    def are_in(self) -> bool:
        told = [one["capture"] for one in self.call("GET", "/v1/status")]
        return all(isinstance(one, dict) and one["captured"] for one in told)


def test_one_file_for_all_brokers_that_comes_late_and_a_pause(cluster: HostedCluster, tmp_path: Path) -> None:
    sidecars = Sidecars(cluster, tmp_path)
    try:
        with unharmed(cluster, "live", p99_seconds=60.0):  # what is lost is asked here, not how long it takes
            for sidecar in sidecars.all.values():
                sidecar.start()
                sidecar.wait_until("/healthz", 60)
            assert sidecars.not_ready("weir.toml: cannot be read")
            assert all(passes_directly(cluster, broker) for broker in cluster.broker_ids)
            sidecars.write_config()
            cluster.wait_for("the token is missing", lambda: sidecars.not_ready("token"), 60)
            sidecars.token.write_text("t" * 32)
            for sidecar in sidecars.all.values():
                sidecar.wait_until("/readyz", 60)
            cluster.wait_for("both in the path", sidecars.are_in, 60)
            cluster.wait_for("links", lambda: _links(sidecars) > 0, 60)

            assert all(one["paused"] for one in sidecars.call("POST", "/v1/capture/pause", {"lease": {"seconds": 20}}))
            cluster.wait_for("both out of the path", lambda: _links(sidecars) == 0, 15)
            assert all(told["troubles"] for told in sidecars.call("GET", "/v1/status"))
            cluster.wait_for("both back when the lease ends", sidecars.are_in, 60)

            sidecars.call("POST", "/v1/capture/pause")
            assert not sidecars.are_in()
            sidecars.call("POST", "/v1/capture/resume")
            cluster.wait_for("both back when resumed", sidecars.are_in, 60)
            cluster.wait_for("links again", lambda: _links(sidecars) > 0, 60)
        log = sidecars.all[LEADER].log.read_text()
        assert "event=not_started" in log
        assert log.count("event=capture_paused") == 2
        assert "event=capture_pause_expired" in log
        assert "event=capture_resumed" in log
    finally:
        for sidecar in sidecars.all.values():
            if sidecar.alive:
                sidecar.kill()


def _links(sidecars: Sidecars) -> float:
    token = {"Authorization": f"Bearer {sidecars.token.read_text()}"}
    texts = [sidecar.http("GET", "/metrics", headers=token)[1] for sidecar in sidecars.all.values()]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("weir_connections{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
