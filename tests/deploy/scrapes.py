# SPDX-License-Identifier: Apache-2.0
"""What real sidecars said, given to Prometheus' own rule engine as if they had said it for hours."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.deploy.files import ALERTS, RECORDING, metrics_in
from weir.lab.sidecar import Sidecar

JOB = "weir"
BEFORE_MINUTES, AFTER_MINUTES = 30, 90
"""For how long each scrape is held: longer than any alert's `for` and all that it looks back."""

Scrape = Mapping[str, float]
"""The value of each series that a rule names, by name and labels as `promtool test rules` reads them."""

Fired = set[tuple[str, str]]
"""Alerts by name, and the broker in their labels; "" where they have none."""

_LINE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_NAMED = metrics_in(ALERTS.read_text() + RECORDING.read_text())


def scrape(sidecars: Mapping[int, Sidecar]) -> dict[str, float]:
    """Scrape each sidecar as Prometheus does, the target's labels added; one that does not answer is down."""
    found: dict[str, float] = {}
    for broker_id, sidecar in sidecars.items():
        target = f'job="{JOB}",instance="{sidecar.admin_address}",broker="{broker_id}"'
        text = ""
        with suppress(OSError):
            status, text = sidecar.http("GET", "/metrics")
            assert status == 200
        found[f"up{{{target}}}"] = float(bool(text))
        for line in text.splitlines():
            if (match := _LINE.fullmatch(line)) and match["name"] in _NAMED:
                labels = f"{target},{match['labels']}" if match["labels"] else target
                found[f"{match['name']}{{{labels}}}"] = float(match["value"])
    return found


def assert_fires(
    folder: Path, before: Scrape, after: Scrape, fired: Fired, *, growing: str = "", minutes: int = AFTER_MINUTES
) -> None:
    """Assert that no alert fires while `before` is held, and that these and no others do while `after` is.

    `growing`: a gauge of seconds that goes on to grow with time, as it did between the scrapes.
    """
    series = []
    for name in sorted({*before, *after}):
        slope = 60 * bool(growing and name.startswith(growing) and after.get(name))
        values = f"{_held(before, name, BEFORE_MINUTES)} {_held(after, name, minutes, slope)}"
        series.append({"series": name, "values": values})
    test = {
        "rule_files": [str(RECORDING), str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    _firing_within(BEFORE_MINUTES - 1, BEFORE_MINUTES - 1, set()),
                    _firing_within(minutes - 1, BEFORE_MINUTES + minutes - 1, fired),
                ],
            }
        ],
    }
    path = folder / "scrapes_test.yml"
    path.write_text(json.dumps(test))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _held(scraped: Scrape, name: str, minutes: int, slope: int = 0) -> str:
    """A value each minute. What is not said is missing."""
    if name not in scraped:
        return f"stale _x{minutes - 1}"
    value = str(scraped[name]).replace("inf", "Inf")
    return f"{value}+{slope}x{minutes - 1}"


def _firing_within(minutes: int, end: int, fired: Fired) -> dict[str, object]:
    wanted = [
        "{" + ",".join(f'{key}="{value}"' for key, value in (("alertname", name), ("broker", broker)) if value) + "}"
        for name, broker in fired
    ]
    return {
        "expr": f'group by (alertname, broker) (max_over_time(ALERTS{{alertstate="firing"}}[{minutes}m]))',
        "eval_time": f"{end}m",
        "exp_samples": [{"labels": labels, "value": 1} for labels in wanted],
    }
