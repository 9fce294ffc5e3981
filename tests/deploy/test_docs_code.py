# SPDX-License-Identifier: Apache-2.0
"""What the pages say of the code: keys, metrics, alerts, paths, names and contracts. And how long the pages are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

from bench import charts
from tests.deploy.exported import every_family
from tests.deploy.files import ALERTS, RUNBOOK
from tests.deploy.test_docs import PAGES, ROOT, anchors
from weir.limits.built_in import BUILT_IN
from weir.proxy.admin.metrics import KNOWN_PASSTHROUGH
from weir.proxy.config.client_limits import ClientLimitTable
from weir.proxy.config.reader import struct_fields
from weir.proxy.config.tables import Config
from weir.proxy.config.tls import KeyTable
from weir.proxy.sidecar import RELOADABLE
from weir.proxy.tls.results import KNOWN_RESULTS

DOCS = ROOT / "docs"
RUNNING = (DOCS / "running.md").read_text()
COUNTED = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
KINDS = ("*.py", "*.toml", "*.yml", "*.yaml", "*.js", "*.service", "*.conf", "*.xml", "*.json")
# as the changelog has them
FORMER_METRICS = {"weir_fetch_session_evictions_total", "weir_questions_total", "weir_held_fetches"}


def section(text: str, heading: str) -> str:
    """A page's part below a heading, up to the next one of its level or above."""
    level = heading.index(" ")
    _, found, after = f"\n{text}".partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"^#{{1,{level}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str, columns: int) -> list[tuple[str, ...]]:
    """The rows of the tables in a text that have so many columns, without their heads."""
    found = [
        tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]
    heads = {index - 1 for index, row in enumerate(found) if set("".join(row)) <= set("-")}
    return [
        row
        for index, row in enumerate(found)
        if len(row) == columns and index not in heads and not set("".join(row)) <= set("-")
    ]


@cache
def code(*, with_tests: bool = False) -> dict[Path, str]:
    """Every file of code and configuration in the checkout."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "weir"]
    return {
        path: path.read_text()
        for folder in folders
        if with_tests or folder.name != "tests"
        for kind in KINDS
        for path in folder.rglob(kind)
    } | {path: path.read_text() for path in (ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "Dockerfile")}


@cache
def names(*, with_tests: bool) -> frozenset[str]:
    """Every word of the code."""
    return frozenset(word for text in code(with_tests=with_tests).values() for word in re.findall(r"\w+", text))


def quoted(cell: str) -> list[str]:
    """What stands in backquotes in a cell."""
    return re.findall(r"`([^`]+)`", cell)


# Keys of the configuration


def below(kind: Any) -> tuple[str, type[msgspec.Struct]] | None:
    """What is appended to the path of a field that holds tables, and their struct; None for a single value."""
    if get_origin(kind) in (Union, UnionType):
        return next((found for one in get_args(kind) if (found := below(one)) is not None), None)
    if get_origin(kind) is tuple:
        found = below(get_args(kind)[0])
        return found and (f"[]{found[0]}", found[1])
    if get_origin(kind) is dict:
        found = below(get_args(kind)[1])
        return found and (f".*{found[0]}", found[1])
    return ("", kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def shown(field: msgspec.structs.FieldInfo) -> str:
    """A field's default as the pages have it."""
    if field.required:
        return "required"
    default = field.default
    if default is None or default == () or default is msgspec.NODEFAULT:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float | int):
        return str(int(default)) if default == int(default) else str(default)
    return ", ".join(f"`{one}`" for one in default) if isinstance(default, tuple) else f"`{default}`"


def keys(table: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, str, bool]]:
    """Every key below a table: its path, its default, and whether it is a table with rows of its own."""
    for field in struct_fields(table):
        name = f'"{field.encode_name}"' if "." in field.encode_name else field.encode_name
        found = below(field.type)
        if found is None or issubclass(found[1], KeyTable | ClientLimitTable):
            yield f"{path}{name}", shown(field), False
            continue
        yield f"{path}{name}", shown(field), True
        yield from keys(found[1], f"{path}{name}{found[0]}.")


def told_keys(text: str) -> dict[str, str]:
    """The keys of a page's tables with their defaults. Several keys in a row have as many defaults."""
    told: dict[str, str] = {}
    for cell, default, _ in rows(text, 3):
        names = quoted(cell)
        told |= {names[0]: default} if len(names) == 1 else dict(zip(names, default.split(", "), strict=True))
    return told


def test_keys_told_are_those_that_are_read_with_their_defaults() -> None:
    told = told_keys(section(RUNNING, "## Configuration"))
    known = {name: (default, is_table) for name, default, is_table in keys(Config)}
    assert {name: default for name, default in told.items() if name not in known} == {}
    assert told == {name: default for name, (default, is_table) in known.items() if not is_table or name in told}
    assert len(told) > 60


def test_tls_keys_told_are_those_read_with_their_defaults() -> None:
    def tables(kind: type[KeyTable]) -> Iterator[type[KeyTable]]:
        yield kind
        for one in kind.__subclasses__():
            yield from tables(one)

    fields = {(field.encode_name, shown(field)) for table in tables(KeyTable) for field in struct_fields(table)}
    assert set(told_keys(section((DOCS / "tls.md").read_text(), "## Keys")).items()) == fields


def test_keys_of_a_limit_told_are_those_that_are_read() -> None:
    told = told_keys(section((DOCS / "limits.md").read_text(), "## What can be set"))
    fields = {field.encode_name: shown(field) for field in struct_fields(ClientLimitTable) if field.name != "options"}
    in_words = ("rate.limiters", "exempt.topics")  # long lists
    options = {option.name: "none" for limiter in BUILT_IN.values() for option in limiter().config()}
    assert {**told, **dict.fromkeys(in_words)} == {**fields, **options, **dict.fromkeys(in_words)}


@pytest.mark.parametrize("page", COUNTED, ids=lambda page: page.name)
def test_keys_named_by_their_table_are_read(page: Path) -> None:
    """As `[cluster] properties`."""
    known = {re.sub(r"\[]|\"", "", name) for name, *_ in keys(Config)}
    known |= {f"tls.{field.encode_name}" for table in KeyTable.__subclasses__() for field in struct_fields(table)}
    named = re.findall(r"`\[+([a-z_.]+)]+`? `?([a-z_]+)`", page.read_text())
    assert [(table, key) for table, key in named if f"{table}.{key}" not in known] == []


def test_what_is_reloaded_is_told() -> None:
    told = [set(quoted(cells[1])) for cells in rows(section(RUNNING, "## Signals"), 2) if "SIGHUP" in cells[0]]
    assert told == [set(RELOADABLE)]


# Metrics and alerts


def test_metrics_told_are_those_exported_with_their_labels() -> None:
    told = {
        name: tuple(labels.split(",")) if labels else ()
        for cell, _ in rows(section(RUNNING, "## Metrics"), 2)
        for name, labels in re.findall(r"`(\w+)(?:\{([\w,]*)\})?`", cell)
    }
    assert told == metrics()
    assert not [
        family.name for family in every_family() if family.name.endswith("_total")
    ]  # as only a counter's sample has


def metrics() -> dict[str, tuple[str, ...]]:
    """The labels of every metric, by its name as it is scraped."""
    return {
        f"{family.name}_total" if family.kind == "counter" else family.name: family.labels for family in every_family()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_named_in_a_page_are_exported_with_these_labels(page: Path) -> None:
    known = metrics()
    for name, labels in re.findall(r"`(weir_[a-z_]+)(?:\{([^}]*)\})?`", page.read_text()):
        if name in FORMER_METRICS and page.name == "CHANGELOG.md":
            continue
        assert name in known, name
        assert set(re.findall(r"(\w+)(?:=\"[^\"]*\")?(?:,|$)", labels)) <= set(known[name]), name


def test_alerts_told_are_those_of_the_rules() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    assert set(re.findall(r"^### (Weir\w+)$", RUNBOOK.read_text(), re.MULTILINE)) == alerts
    in_pods = section((DOCS / "kubernetes.md").read_text(), "## Alerts")
    assert {alert for row in rows(in_pods, 3) for alert in re.findall(r"`(Weir\w+)`", row[0])} == alerts
    table = section((ROOT / "deploy" / "README.md").read_text(), "## Alerts")
    assert {quoted(cell)[0] for cell, _ in rows(table, 2)} == alerts
    for page in PAGES:
        assert set(re.findall(r"`(Weir[A-Z]\w+)`", page.read_text())) <= alerts


def test_reasons_told_are_those_of_the_code() -> None:
    passed = section((DOCS / "architecture.md").read_text(), "## What passes undecoded")
    assert {name for cell, *_ in rows(passed, 3) for name in quoted(cell)} == set(KNOWN_PASSTHROUGH)
    results = section((DOCS / "tls.md").read_text(), "## When a handshake fails")
    assert {name for cell, _ in rows(results, 2) for name in quoted(cell)} == set(KNOWN_RESULTS) - {"ok"}


def test_calls_told_are_those_of_the_admin_server() -> None:
    served = re.findall(r"web\.(get|put|patch|delete|post)\(\"([^\"]+)\"", (ROOT / "proxy/admin/http.py").read_text())
    told = {
        (method, path)
        for cell, _ in rows(section(RUNNING, "## Admin HTTP"), 2)
        for path in re.findall(r"(/[\w/]*)`", cell)
        for method in re.findall(r"GET|PUT|PATCH|DELETE|POST", cell)
    }
    assert told == {(method.upper(), path) for method, path in served}


# Paths, benches and names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_named_in_a_page_are_there(page: Path) -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()}
    for path in re.findall(r"`([\w.-]+/[\w./*-]*)`", page.read_text()):
        if path.partition("/")[0] in rooms and "//" not in path:
            assert list(ROOT.glob(path.rstrip("/"))), path
    for module in re.findall(r"\b((?:bench|weir\.lab)\.[a-z_]+)\b(?!\.)", page.read_text()):
        assert (ROOT / f"{module.removeprefix('weir.').replace('.', '/')}.py").exists(), module


@pytest.mark.long
def test_pages_named_in_code_are_there() -> None:
    for path, text in code(with_tests=True).items():
        for page, anchor in re.findall(r"\b((?:docs|bench)/\w+\.md)(?:#([\w-]+))?", text):
            assert (ROOT / page).exists(), f"{path}: {page}"
            assert not anchor or anchor in anchors(ROOT / page), f"{path}: {page}#{anchor}"


@pytest.mark.long
@pytest.mark.parametrize("page", COUNTED, ids=lambda page: page.name)
def test_names_in_a_page_are_in_the_code(page: Path) -> None:
    """Names with an underscore: of events in the log, columns, functions and settings."""
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page.read_text())) - FORMER_METRICS - set(metrics())
    assert named - names(with_tests=page.name == "CONTRIBUTING.md") == set()


# The code's own rules


def test_pure_packages_told_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = [one["source_modules"] for one in contracts if "time" in one.get("forbidden_modules", ())]
    rooms = {name.removeprefix("weir.") for name in pure if name.count(".") == 1}
    for page in ("CONTRIBUTING.md", "docs/architecture.md"):
        text = " ".join((ROOT / page).read_text().split())
        (told,) = re.findall(r"((?:`\w+/?`,? (?:and )?)+)are pure:", text)
        assert {name.strip("/") for name in quoted(told)} == rooms


def test_rooms_are_drawn_in_the_layers_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [set(layer.split(" | ")) for layer in contracts[0]["layers"]]
    drawn = section((DOCS / "architecture.md").read_text(), "## The rooms").split("```")[1]
    found = [set(re.findall(r"^.{13}(\w+)/ ", part, re.MULTILINE)) for part in re.split(r"-{20,}", drawn)]
    assert found == [layers[0] | layers[1], *layers[2:]]


# Words and charts


def words(*pages: Path) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def test_pages_are_short() -> None:
    assert words(*COUNTED) <= 30_000
    assert words(DOCS / "performance.md") <= 1_500
    assert words(DOCS / "reports.md", DOCS / "samples.md") <= 3_500
    assert words(ROOT / "bench/HISTORY.md") <= 1_500


def test_charts_are_drawn_from_the_tables_of_the_page() -> None:
    drawn = charts.charts(charts.PAGE.read_text())
    assert len(drawn) == 2
    assert drawn == {name: (DOCS / name).read_text() for name in drawn}
    assert "19.531 x" in drawn["quota.svg"]
