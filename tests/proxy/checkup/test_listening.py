# SPDX-License-Identifier: Apache-2.0
"""Addresses to listen on: free, taken, not this machine's, or the running sidecar's own."""

from __future__ import annotations

import socket

from weir.proxy.checkup.findings import Finding
from weir.proxy.checkup.listening import Running, listening_findings
from weir.proxy.config.load import parse_config
from weir.proxy.config.tables import Config


def config(port: int, host: str = "127.0.0.1") -> Config:
    return parse_config(
        f'broker_id = 1\n[[ingress]]\nlisten = "{host}:{port}"\nupstream = "127.0.0.1:1"\n'
        '[admin]\nlisten = "127.0.0.1:0"\n'
    )


def found(config: Config, running: Running | None = None) -> dict[str, Finding]:
    return {finding.about: finding for finding in listening_findings(config, running)}


def test_listen_address_is_free_or_taken() -> None:
    assert found(config(0))["ingress[0].listen"].level == "ok"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = found(config(taken.getsockname()[1]))["ingress[0].listen"]
    assert (finding.level, "is taken by another process" in finding.sentence) == ("fail", True)


def test_listen_address_of_another_machine_is_told() -> None:
    finding = found(config(0, "192.0.2.1"))["ingress[0].listen"]
    assert (finding.level, "192.0.2.1 is no address of this machine" in finding.sentence) == ("fail", True)


def test_listen_address_of_the_running_sidecar_is_ok() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        running = Running(1, frozenset({f"127.0.0.1:{port}"}))
        assert {one.level for one in found(config(port), running).values()} == {"ok"}
        finding = found(config(port), Running(1, frozenset()))["ingress[0].listen"]
        assert (finding.level, "taken by another" in finding.sentence) == ("fail", True)
        assert found(config(port), Running())["ingress[0].listen"].level == "warn"  # it wants a token
    assert "restart it" in found(config(0), Running(1, frozenset()))["ingress[0].listen"].sentence


def test_sidecar_that_hangs_is_told_with_its_process() -> None:
    (finding,) = listening_findings(config(0), None, hung=4711)
    assert (finding.level, "kill -9 4711, and start it again" in finding.sentence) == ("fail", True)
    assert listening_findings(config(0), Running(1, frozenset()), hung=4711)  # it answers, so it does not hang
    assert "hangs" not in " ".join(one.sentence for one in listening_findings(config(0), Running(1), hung=4711))


def test_admin_address_of_another_brokers_sidecar_is_told() -> None:
    finding = found(config(0), Running(2, frozenset()))["admin.listen"]
    assert (finding.level, "the sidecar of broker 2" in finding.sentence) == ("fail", True)
