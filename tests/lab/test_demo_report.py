# SPDX-License-Identifier: Apache-2.0
import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.pipeline.exported import DAY, Sidecar, partition, write_lines
from weir.lab import demo_report
from weir.lab.demo import promised_samples
from weir.lab.demo_report import exported_bytes, write_page
from weir.lab.errors import LabError


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Two files of a leader, in two days, and one of its follower."""
    leader, follower = Sidecar(1), Sidecar(2)
    told = [
        (DAY, leader.sample(partition("orders", 0, 0, throttled=100), partition("live", 0, 7))),
        (DAY + timedelta(days=1), leader.sample(partition("orders", 1, 0, throttled=23))),
        (DAY, follower.sample(partition("orders", 0, 100, side="follower"))),
    ]
    folder = tmp_path / "samples"
    for number, (day, lines) in enumerate(told):
        write_lines(folder / f"date={day}" / "hour=12" / f"broker-{number}.jsonl.gz", lines)
    return folder


def test_exported_bytes_are_those_of_leaders_and_of_the_topic(samples: Path) -> None:
    assert exported_bytes(samples, "orders") == 123


@pytest.mark.parametrize(("exported", "held"), [(99, False), (100, True), (101, False)])
def test_samples_are_promised_to_tell_of_each_byte_once(exported: int, held: bool) -> None:
    assert promised_samples(exported, 100).held is held


def test_page_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="exported no samples"):
        write_page(tmp_path, tmp_path / "tables", tmp_path / "page.html")


@pytest.mark.long
def test_command_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"^weir report html failed: .*--input: .* is no folder"):
        demo_report._weir_report("html", "--input", tmp_path / "tables", "--output", tmp_path / "page.html")


def test_commands_are_given_all_days_of_the_samples(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(demo_report, "_weir_report", lambda *arguments: given.append(" ".join(map(str, arguments))))
    write_page(samples, tmp_path / "tables", tmp_path / "page.html")
    build, html = given
    assert re.search(rf"--from {DAY} --to {DAY + timedelta(days=2)}$", build)
    assert html == f"html --input {tmp_path / 'tables'} --output {tmp_path / 'page.html'} --top 50"
