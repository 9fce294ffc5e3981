# SPDX-License-Identifier: Apache-2.0
"""What is said of a machine: ways of installing, rules left behind, user, descriptors, clocks."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from weir.proxy.admin.troubles import Connections
from weir.proxy.capture.nftables import NftError, PacketFilter
from weir.proxy.capture.requirements import CaptureError
from weir.proxy.checkup.findings import Finding
from weir.proxy.checkup.machine import (
    Process,
    clock_findings,
    kernel_says_synchronised,
    process_findings,
    rules_findings,
    sidecar_process,
    tracking_findings,
    way_findings,
)
from weir.proxy.config.load import parse_config
from weir.proxy.relay.admission import connections_with, descriptors_for

LISTENERS = parse_config('broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:1"\n')
CAPTURE = parse_config('broker_id = 1\n[capture]\nport = 9092\n[cluster]\nbootstrap_servers = "127.0.0.1:1"\n')


class Kernel:
    """A packet filter with these tables; None: it is not there."""

    def __init__(self, tables: dict[str, str] | None) -> None:
        self.tables = tables

    def opened(self) -> PacketFilter:
        if self.tables is None:
            raise NftError("libnftables.so.1 is not there: install nftables")
        return self

    def run(self, commands: str) -> str:
        assert self.tables is not None
        if commands == "list tables inet":
            return "".join(f"table inet {name}\n" for name in self.tables)
        if commands == "list ruleset":
            return "".join(f"table inet {name} {{\n{rules}\n}}\n" for name, rules in self.tables.items())
        return self.tables[commands.removeprefix("list table inet ")]

    def close(self) -> None:
        pass


def lacking(*_: object) -> None:
    raise CaptureError("capture needs the capability CAP_NET_ADMIN")


def fine(*_: object) -> None:
    pass


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.about: finding.level for finding in findings}


def test_impossible_capture_fails_only_where_the_file_wants_it() -> None:
    kernel = Kernel({})
    assert levels(list(way_findings(None, kernel.opened, lacking)))["capture"] == "warn"
    assert levels(list(way_findings(LISTENERS, kernel.opened, lacking)))["capture"] == "ok"
    found = list(way_findings(CAPTURE, kernel.opened, lacking))
    assert Finding("fail", "capture", "capture needs the capability CAP_NET_ADMIN") in found
    assert levels(list(way_findings(CAPTURE, Kernel(None).opened, fine)))["capture"] == "fail"


def test_capture_that_is_possible_looks_for_its_broker() -> None:
    kernel = Kernel({})
    assert set(levels(list(way_findings(CAPTURE, kernel.opened, fine, fine))).values()) == {"ok"}
    assert levels(list(way_findings(CAPTURE, kernel.opened, fine, lacking)))["capture.port"] == "fail"


def test_rules_without_an_owner_stand_alone() -> None:
    tables = {"weir_1": "table inet weir_1 {\n\tflags owner\n}", "weir_2": "table inet weir_2 {\n}", "other": ""}
    owned, alone = rules_findings(Kernel(tables).opened)
    assert (owned.level, "weir_1 belongs to a sidecar" in owned.sentence) == ("ok", True)
    assert (alone.level, "weir capture remove" in alone.sentence) == ("warn", True)
    assert list(rules_findings(Kernel(None).opened)) == []


def process(user: int = 1000, descriptors: int = 100_000) -> Process:
    return Process(7, user, descriptors, True)


def test_root_is_a_warning_without_capture() -> None:
    assert levels(list(process_findings(LISTENERS, process(0))))["user"] == "warn"
    assert levels(list(process_findings(CAPTURE, process(0))))["user"] == "ok"
    assert levels(list(process_findings(LISTENERS, process())))["user"] == "ok"


WANTED = descriptors_for(LISTENERS.limits.max_connections)


@pytest.mark.parametrize(
    ("descriptors", "level"), [(WANTED - 1, "warn"), (WANTED, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_descriptors_for_the_most_connections_are_wanted(descriptors: int, level: str) -> None:
    found = list(process_findings(LISTENERS, process(descriptors=descriptors)))
    assert levels(found)["descriptors"] == level


def test_few_descriptors_are_told_as_connections() -> None:
    _, found = process_findings(LISTENERS, process(descriptors=1_024))
    assert found.sentence.startswith(f"1024 at most, enough for {connections_with(1_024)} connections")


def test_table_of_connections_that_is_full_fails() -> None:
    nobody = Kernel(None).opened
    assert list(tracking_findings(None, nobody)) == []
    assert [one.level for one in tracking_findings(Connections(89, 100), nobody)] == ["ok"]
    (full,) = tracking_findings(Connections(95, 100), nobody)
    assert (full.level, full.sentence.startswith("95 of 100 places are taken, and packets")) == ("fail", True)


def test_firewall_that_has_all_connections_tracked_is_named() -> None:
    tables = {"weir_1": "type nat hook output", "firewalld": "ct state established accept"}
    (alone,) = tracking_findings(Connections(1, 100), Kernel({"weir_1": tables["weir_1"]}).opened)
    (beside,) = tracking_findings(Connections(1, 100), Kernel(tables).opened)
    assert alone.sentence == "1 of 100 places are taken"
    assert beside.sentence.startswith("1 of 100 places are taken; table inet firewalld: for this all connections")


def test_sidecar_is_found_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    proc = tmp_path / "proc"
    for pid, words in {"11": "grep\0run\0x.toml", "12": f"python\0/opt/weir\0run\0--config\0{file}\0"}.items():
        (proc / pid).mkdir(parents=True)
        (proc / pid / "cmdline").write_text(words)
        (proc / pid / "limits").write_text("Limit  Soft Hard\nMax open files            1024   4096   files\n")
    found = sidecar_process(file, proc)
    assert (found.pid, found.descriptors, found.is_sidecar) == (12, 4096, True)
    assert not sidecar_process(tmp_path / "other.toml", proc).is_sidecar
    assert not sidecar_process(None, proc).is_sidecar


def test_clocks_are_compared_with_those_of_other_sidecars() -> None:
    assert [one.level for one in clock_findings(True, {"a:1": 0.6, "b:1": -1.9})] == ["ok", "ok"]
    _, apart = clock_findings(True, {"a:1": 0.6, "b:1": -30.0})
    assert (apart.level, apart.sentence.startswith("the machine of b:1 is 30 s behind this one")) == ("warn", True)
    unkept, untold = clock_findings(False, {})
    assert (unkept.level, untold.level) == ("warn", "ok")
    assert "Kafka's protocol does not tell" in untold.sentence
    assert len(list(clock_findings(None, {}))) == 1


def test_kernel_tells_of_its_clock() -> None:
    assert kernel_says_synchronised() in (True, False, None)
