# SPDX-License-Identifier: Apache-2.0
"""Whose rules need the kernel to track all connections, and when a capture has it track those of brokers alone."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.relaying import logged
from tests.proxy.captured import BROKERS, FakeFilter, capturing, settle
from tests.proxy.test_capture_rules import NEEDS_KERNEL
from weir.proxy.capture import tracking
from weir.proxy.capture.tracking import LOOK_SECONDS, RuleEvents, Tracking, legacy_tables, needed_by

PLAIN = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n}\n"
FIREWALLD = """table inet firewalld {
\tchain filter_INPUT {
\t\ttype filter hook input priority filter + 10; policy accept;
\t\tct state { established, related } accept
\t\tct status dnat accept
\t\treject with icmpx admin-prohibited
\t}
}
"""


@pytest.fixture(autouse=True)
def no_legacy_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "legacy_tables", lambda: None)


@pytest.mark.parametrize(
    ("rules", "who"),
    [
        ("", None),
        (PLAIN, None),
        (PLAIN + FIREWALLD, "table inet firewalld"),
        (
            "table ip nat {\n\tchain POSTROUTING {\n\t\ttype nat hook postrouting priority srcnat;\n\t}\n}\n",
            "table ip nat",
        ),
        ('table ip filter {\n\tchain INPUT {\n\t\txt match "conntrack" accept\n\t}\n}\n', "table ip filter"),
    ],
)
def test_rules_that_look_at_connections_need_them_tracked(rules: str, who: str | None) -> None:
    assert needed_by(rules) == who


def test_captures_own_table_does_not_count_but_anothers_does() -> None:
    """Asked is whether rules of anybody else need connections tracked."""
    rules = (
        "table inet weir_{} {{ # progname weir\n\tchain output {{\n\t\ttype nat hook output priority -100;\n\t}}\n}}\n"
    )
    assert needed_by(rules.format(1), "inet weir_1") is None
    assert needed_by(rules.format(1) + rules.format(2), "inet weir_1") == "table inet weir_2"


def test_tables_of_the_older_iptables_count(tmp_path: Path) -> None:
    names, missing = tmp_path / "ip_tables_names", tmp_path / "ip6_tables_names"
    names.write_text("")
    assert legacy_tables((names, missing)) is None
    names.write_text("nat\nfilter\n")
    assert legacy_tables((missing, names)) == "tables of iptables-legacy: nat, filter"
    missing.mkdir()  # a file that may not be read
    assert legacy_tables((missing,)) is not None


class Listed(FakeFilter):
    rules = ""

    def run(self, commands: str) -> str:
        super().run(commands)
        return self.rules if commands == "list ruleset" else ""

    @property
    def looks(self) -> int:
        return self.told.count("list ruleset")


@asynccontextmanager
async def looking() -> AsyncIterator[tuple[Tracking, Listed, MovedClock]]:
    packet_filter, clock = Listed(), MovedClock()
    with logged() as (log, _):
        yield Tracking("inet weir_1", lambda: packet_filter, None, log, clock), packet_filter, clock


async def test_it_looks_again_in_a_minute_or_with_older_iptables(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at once when tables of the older iptables come."""
    async with looking() as (tracking_, packet_filter, clock):
        for _ in range(3):
            assert await tracking_.look() is None
        assert packet_filter.looks == 1
        monkeypatch.setattr(tracking, "legacy_tables", lambda: "tables of iptables-legacy: nat")
        assert await tracking_.look() == await tracking_.look() == "tables of iptables-legacy: nat"
        assert packet_filter.looks == 2
        monkeypatch.setattr(tracking, "legacy_tables", lambda: None)
        clock.now += LOOK_SECONDS
        assert await tracking_.look() is None


async def test_rules_that_cannot_be_read_may_need_it() -> None:
    async with looking() as (tracking_, packet_filter, _):
        packet_filter.refuses = "no"
        assert await tracking_.look() == "rules that cannot be read: no"


async def test_others_connections_are_untracked_unless_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with capturing() as (capture, packet_filter, _):
        capture.learn(BROKERS)
        await settle()
        assert packet_filter.told[-1].endswith("others notrack")
        assert capture.status()["all_tracked_for"] is None
        monkeypatch.setattr(tracking, "legacy_tables", lambda: "tables of iptables-legacy: nat")
        capture.throttle_changed(True)  # for it to look now
        async with asyncio.timeout(5):
            while "flush chain inet weir_1 others" not in packet_filter.told:
                await settle()
        assert capture.status()["all_tracked_for"] == "tables of iptables-legacy: nat"


@pytest.mark.skipif(NEEDS_KERNEL[0].args[0] or NEEDS_KERNEL[1].args[0], reason="needs root and nft")
async def test_added_rules_are_told_and_changed_sets_are_not() -> None:
    events = RuleEvents()
    try:
        _nft("add table inet weirtest; add chain inet weirtest one")
        await asyncio.sleep(0.05)
        assert events.have_come()
        _nft("add set inet weirtest ports { type inet_service; }")
        events.have_come()
        _nft("add element inet weirtest ports { 22 }")
        await asyncio.sleep(0.05)
        assert not events.have_come()
        _nft("add rule inet weirtest one accept")
        await asyncio.sleep(0.05)
        assert events.have_come()
        assert not events.have_come()
    finally:
        _nft("delete table inet weirtest")
        events.close()


def _nft(commands: str) -> None:
    subprocess.run(["nft", commands], check=True, timeout=10)
