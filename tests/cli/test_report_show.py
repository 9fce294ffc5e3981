# SPDX-License-Identifier: Apache-2.0
"""`weir report show`: five answers as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import failing
from tests.pipeline.page.past import Past, broker_minutes
from weir.cli.main import main
from weir.pipeline.tables import BROKER_RATES


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    past = Past(tmp_path / "tables")
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (0, 1e6), (0, 1e6)))
    return past.write()


@pytest.mark.long
def test_text_has_five_answers_in_80_columns(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("report", "show", "--input", str(tables))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "1 broker, 0 partitions, 0 quotas, 0 moves, 2026-11-02 00:00 UTC to 2026-11-02",
        "00:02 UTC.",
    ]
    assert [line for line in lines if line.endswith("?")] == [
        "Did the throttle protect my clients?",
        "Which move hurt?",
        "When will it end?",
        "Who is the bottleneck?",
        "Can I raise the rate tonight?",
    ]
    assert max(map(len, lines)) <= 80


def test_json_has_the_figures_and_the_sentences(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("report", "show", "--input", str(tables), "--timezone", "Europe/Berlin", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sampled_until"] == "2026-11-02 00:02:00+00:00"
    assert found["room"]["most_seen"] == 1e6
    assert [answer["tone"] for answer in found["answers"]] == ["plain", "good", "good", "plain", "plain"]


def test_range_without_samples_says_so(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("report", "show", "--input", str(tables), "--from", "2026-12-01", "--to", "2026-12-02")) == 0
    out = capsys.readouterr().out
    assert out.startswith("Nothing was sampled from 2026-12-01 00:00 UTC to 2026-12-02 00:00 UTC.\n")
    assert out.count("Not known: nothing was sampled in this range.") == 5


def test_folder_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    assert failing(capsys, "report", "show", "--input", str(missing)) == (2, f"--input: {missing} is no folder.")
