# SPDX-License-Identifier: Apache-2.0
"""`weir check --live` and `weir doctor` against real brokers: what each misconfiguration is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.trio.throttles import on
from weir.cli.main import main
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST

pytestmark = [pytest.mark.integration, on(NEWEST.name)]


class Checked:
    """Runs `weir check --live` for broker 1, whose configuration is right but for what a test changes."""

    def __init__(self, cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "weir.toml"
        self.right = cluster.sidecars[1].config.read_text()
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.1.1 localhost\n")
        self._capsys = capsys

    def live(self, before: str = "", after: str = "", more: str = "") -> tuple[int, dict[str, str]]:
        """Return the exit status and the sentences that are no ok, by what they are about."""
        assert before in self.right
        self.file.write_text(self.right.replace(before, after) + more if before else self.right + more)
        arguments = ["--live", str(self.file), "--hosts-file", str(self._hosts), "--json"]
        status = main(["check", *arguments])
        found: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)["live"]
        return status, {one["about"]: one["sentence"] for one in found if one["level"] != "ok"}


def test_each_misconfiguration_has_its_sentence(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic("orders", {0: [1, 2]})
    checked = Checked(cluster, tmp_path, capsys)
    one, two = cluster.places[1], cluster.places[2]
    upstream = f'"upstream" = "{two.advertised_address}"'
    assert checked.live() == (0, {})

    status, said = checked.live(upstream, f'"upstream" = "{one.direct_address}"')
    assert (status, "which is this broker itself" in said["egress[0].upstream"]) == (1, True)

    status, said = checked.live(f'"upstream" = "{one.listener_address}"', f'"upstream" = "{two.listener_address}"')
    assert (status, "is broker 2, and broker_id is 1" in said["ingress[0].upstream"]) == (1, True)

    status, said = checked.live(upstream, f'"upstream" = "127.0.0.1:{one.controller}"')
    assert (status, "is a controller's listener" in said["egress[0].upstream"]) == (1, True)

    status, said = checked.live(upstream, '"upstream" = "127.0.0.1:1"')
    assert (status, "nothing listens on 127.0.0.1:1" in said["egress[0].upstream"]) == (1, True)

    status, said = checked.live(upstream, '"upstream" = "kafka2.invalid:9092"')
    assert (status, "does not resolve" in said["egress[0].upstream"]) == (1, True)

    status, said = checked.live('"peer" = 2', '"peer" = 7')
    assert (status, "no broker that runs has the id 7 (1, 2 and 3)" in said["egress[0].peer"]) == (1, True)

    status, said = checked.live("broker_id = 1", "broker_id = 8")
    assert (status, "no broker that runs has the id 8" in said["broker_id"]) == (1, True)

    status, said = checked.live(f'"listen" = "127.0.1.1:{two.advertised}"', '"listen" = "127.0.1.1:1"')
    assert (status, f"listen on port {two.advertised}" in said["egress[0].listen"]) == (1, True)

    table = '[throttle.topics.ordres]\n"leader.replication.throttled.replicas" = "*"\n'
    assert checked.live(more=table) == (
        1,
        {"throttle.topics.ordres": "there is no topic ordres: did you mean orders?"},
    )


def test_name_that_leads_past_the_sidecar_is_told(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the broker's own hosts file localhost is 127.0.0.1 here, as it is for who has no egress."""
    file = tmp_path / "weir.toml"
    file.write_text(cluster.sidecars[1].config.read_text())
    assert main(["check", "--live", str(file)]) == 1
    assert "this broker fetches past the sidecar; let localhost lead to 127.0.1.1" in capsys.readouterr().out


def test_doctor_finds_the_sidecar_that_runs_and_its_fellow(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.1.1 localhost\n")
    assert main(["doctor", str(cluster.sidecars[1].config), "--hosts-file", str(hosts), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    said = {(one["level"], one["about"]): one["sentence"] for one in found}
    assert "a sidecar runs" in said["ok", "admin.listen"]
    assert "is broker 2" in said["ok", "egress[0].upstream"]
    agreed = said["ok", "clock"]  # the addresses stand sorted as texts, and the ports are free ones
    assert cluster.sidecars[1].admin_address in agreed and cluster.sidecars[2].admin_address in agreed
    assert agreed.endswith("agree within 2 s")
    user = said.get(("ok", "user")) or said["warn", "user"]
    assert user.startswith("the sidecar is")
