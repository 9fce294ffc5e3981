# SPDX-License-Identifier: Apache-2.0
"""The frame of the benches: tables, bounds, and turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.table import SPREAD, Report, add_parts, parser, spread_of, turned, with_trees


def test_table_has_as_many_digits_as_its_columns_say(capsys: pytest.CaptureFixture[str]) -> None:
    Report(False).table("t", "links | mean, x .3 | of it", [(1200, 0.5, None), ("all", 2.0, 7.7)])
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "| links | mean, x | of it |",
        "|---|---|---|",
        "| 1,200 | 0.500 |  |",
        "| all | 2.000 | 8 |",
    ]


def test_json_lines_have_the_figures_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(True)
    report.table("t", "links | mean .1", [(1, 0.123)])
    report.bound("mean", 0.123, least=0.2)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"table": "t", "links": 1, "mean": 0.123}
    assert (second["held"], report.status) == (False, 1)


def test_status_is_0_until_a_bound_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(False)
    report.bound("x", 1.0, least=1.0, most=1.0)
    assert report.status == 0
    report.bound("x", 1.01, most=1.0)
    report.bound("x", 1.0)
    assert report.status == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["held", "MISSED", "held"]


def test_ways_take_turns_and_are_compared_by_round() -> None:
    assert [turned("ab", number) for number in range(2)] == ["ba", "ab"]
    assert spread_of([1.0, 4.0, 9.0], [2.0, 2.0, 3.0]) == (4.0, 1.0, 9.0, 2.0)
    assert len(SPREAD.split(" | ")) == 4


def test_rows_name_their_tree_where_there_are_several() -> None:
    one, other = Path("/one"), Path("/other")
    assert [label for *_, label in with_trees([1, 2], [one])] == ["", ""]
    assert list(with_trees([1, 2], [one, other])) == [
        (1, other, ", other"),
        (1, one, ", one"),
        (2, one, ", one"),
        (2, other, ", other"),
    ]


def test_parts_are_all_or_those_asked_for() -> None:
    options = parser("x", "x")
    add_parts(options, ["a", "b"])
    assert options.parse_args([]).parts == ["a", "b"]
    assert options.parse_args(["b"]).parts == ["b"]
    with pytest.raises(SystemExit):
        options.parse_args(["c"])
