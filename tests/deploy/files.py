# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/, and what their queries name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"
RECORDING = DEPLOY / "prometheus" / "weir-recording.yml"
ALERTS = DEPLOY / "prometheus" / "weir-alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "weir.json"
RUNBOOK = DEPLOY.parent / "docs" / "operations.md"
RULE_TESTS = tuple(Path(__file__).with_name(name) for name in ("rules_test.yml", "rules_down_test.yml"))

_NAME = re.compile(r"\b(?:weir_|process_|weir:|kip73:)[\w:]*")


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test on a machine without these programs of Debian's package prometheus."""
    absent = [program for program in programs if shutil.which(program) is None]
    reason = f"{' and '.join(absent)} not installed: apt-get install prometheus"
    return pytest.mark.skipif(bool(absent), reason=reason)


def dashboard() -> Any:
    """The dashboard, as Grafana reads it."""
    return json.loads(DASHBOARD.read_text())


def panels() -> list[Any]:
    """Every panel of the dashboard but the headings."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard, with its panel's title in front."""
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def metrics_in(text: str) -> set[str]:
    """The names of metrics that queries or rules mention."""
    return set(_NAME.findall(text))
