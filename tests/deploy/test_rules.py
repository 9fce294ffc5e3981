# SPDX-License-Identifier: Apache-2.0
"""The rules by promtool, Prometheus' own: that it reads them, and what fires when (rules_test.yml)."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.deploy.exported import every_family
from tests.deploy.files import ALERTS, CONFIGURATION, RECORDING, RULE_TESTS, RUNBOOK, needs
from weir.proxy.admin.exposition import render


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs("promtool")
def test_rules_and_scrape_configuration_are_valid() -> None:
    promtool("check", "config", CONFIGURATION)


@pytest.mark.long
@needs("promtool")
def test_rules_fire_when_they_should_and_are_silent_when_not() -> None:
    promtool("test", "rules", *RULE_TESTS)


@needs("promtool")
async def test_all_metric_names_but_one_are_as_prometheus_recommends() -> None:
    """Prometheus keeps `_sum` for histograms; KIP-73 calls this one SumReplicaLag, and dashboards rely on the name."""
    shown = b"".join(render(every_family()))
    done = subprocess.run(["promtool", "check", "metrics"], input=shown, capture_output=True)  # noqa: ASYNC221
    complaints = (done.stdout + done.stderr).decode().splitlines()
    assert [line.split()[0] for line in complaints] == ["weir_replica_lag_messages_sum"]


async def test_labels_that_rules_name_are_those_of_the_metrics() -> None:
    """Of metrics that are named together with labels: `by` and `on` may have those of Prometheus too."""
    shown = {
        f"{family.name}_total" if family.kind == "counter" else family.name: set(family.labels)
        for family in every_family()
    }
    found = re.findall(r"(weir_\w+)\{([^}]*)\}", ALERTS.read_text() + RECORDING.read_text())
    assert len(found) > 3
    for name, selectors in found:
        assert set(re.findall(r"(\w+)(?:=|!=)", selectors)) <= shown[name]


def alerts() -> dict[str, str]:
    """Every alert's text by its name."""
    _, *found = re.split(r"- alert: ", ALERTS.read_text())
    return {text.split("\n", 1)[0]: text for text in found}


@pytest.mark.parametrize("alert", alerts())
def test_alert_says_what_to_do_and_is_tested_both_ways(alert: str) -> None:
    text = alerts()[alert]
    assert re.search(r"severity: (critical|warning|info)\n", text)
    assert "summary: " in text
    assert "description: " in text
    tests = "".join(path.read_text() for path in RULE_TESTS)
    assert re.search(rf"alertname: {alert}, eval_time: \w+, exp_alerts: \[\]", tests)
    assert re.search(rf"alertname: {alert}\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels", tests)


@pytest.mark.parametrize("alert", alerts())
def test_alert_has_a_runbook_section_on_what_to_look_at_and_do(alert: str) -> None:
    assert f"runbook: docs/operations.md#{alert.lower()}\n" in alerts()[alert]
    _, found, after = RUNBOOK.read_text().partition(f"\n### {alert}\n")
    assert found
    section = after.partition("\n### ")[0].partition("\n## ")[0]
    for part in ("Means", "Look", "Do"):
        assert f"\n**{part}.** " in section
