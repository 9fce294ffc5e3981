# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the rules, without Prometheus: every metric that they name is one of the sidecar's."""

from __future__ import annotations

import itertools
import re

from prometheus_client import ProcessCollector

from tests.deploy.exported import every_family
from tests.deploy.files import ALERTS, RECORDING, dashboard, metrics_in, panels, queries


def exported() -> set[str]:
    """The names in /metrics, those of events that have not happened yet too."""
    own = {f"{family.name}_total" if family.kind == "counter" else family.name for family in every_family()}
    return own | {sample.name for metric in ProcessCollector(registry=None).collect() for sample in metric.samples}


def recorded() -> set[str]:
    return set(re.findall(r"- record: (\S+)", RECORDING.read_text()))


def test_rules_name_metrics_that_sidecars_export() -> None:
    assert metrics_in(RECORDING.read_text()) - recorded() <= exported()
    named = metrics_in(ALERTS.read_text())
    assert len(named) > 5
    assert named <= exported() | recorded()


def test_dashboard_names_metrics_that_are_exported_or_recorded() -> None:
    """Sidecars export them, or rules record them."""
    named = set().union(*(metrics_in(query) for _, query in queries()))
    assert named <= exported() | recorded()
    assert {name for name in recorded() if name.startswith("kip73:")} <= named


def test_dashboard_shows_all_counters_of_unthrottled_or_lost() -> None:
    """It shows each counter of what was not throttled, and of what was lost."""
    named = set().union(*(metrics_in(query) for _, query in queries()))
    assert {
        name
        for name in exported()
        if re.search("passthrough|errors|failures|dropped|unknown|not_counted|disabled", name)
    } <= named


def test_dashboard_uses_the_chosen_source_clusters_and_brokers() -> None:
    """Each query goes to the data source, the jobs and the brokers that are chosen."""
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    assert [variables[name]["type"] for name in ("datasource", "job", "broker")] == ["datasource", "query", "query"]
    for panel in panels():
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for title, query in queries():
        chosen = query.count('{job=~"$job", broker=~"$broker"')
        named = sum(len(re.findall(rf"\b{name}\b", query)) for name in metrics_in(query))
        assert chosen == named or query.startswith("up{"), title


def test_dashboard_panels_lie_beside_each_other() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    taken = [
        (x, y)
        for place in places
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
