# SPDX-License-Identifier: Apache-2.0
"""The units: systemd itself checks them, and says how much a service could do that was taken over."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY

UNITS = DEPLOY / "systemd"
SERVICE = UNITS / "weir.service"
CAPTURE = UNITS / "weir.service.d" / "capture.conf"
BROKER = UNITS / "weir.service.d" / "broker.conf"
KAFKA = UNITS / "kafka.service.d" / "weir.conf"
SAMPLES = UNITS / "weir-samples.service"
TIMER = UNITS / "weir-samples.timer"

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")

_VARIANTS = pytest.mark.parametrize("drop_ins", [(), (CAPTURE,), (BROKER,), (CAPTURE, BROKER)], ids=str)


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)


def verify(*units: Path) -> subprocess.CompletedProcess[str]:
    return analyze("verify", "--man=no", *units)


def installed(folder: Path, unit: Path, drop_ins: tuple[Path, ...]) -> Path:
    """Write a unit with its drop-ins, as they are installed; its program is one that this machine has."""
    copy = folder / unit.name
    copy.write_text(unit.read_text().replace("/opt/weir/bin/weir", "/bin/true"))
    for drop_in in drop_ins:
        (folder / f"{unit.name}.d").mkdir(exist_ok=True)
        shutil.copy(drop_in, folder / f"{unit.name}.d")
    return copy


@_VARIANTS
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path, drop_ins: tuple[Path, ...]) -> None:
    done = verify(installed(tmp_path, SERVICE, drop_ins))
    assert (done.returncode, complaints(done)) == (0, [])


def test_systemd_finds_no_fault_in_a_broker_bound_to_a_sidecar(tmp_path: Path) -> None:
    broker = tmp_path / "distribution" / "kafka.service"
    broker.parent.mkdir()
    broker.write_text("[Service]\nExecStart=/bin/true\n")
    weir = installed(tmp_path, SERVICE, (BROKER,))
    done = verify(installed(tmp_path, broker, (KAFKA,)), weir)
    assert (done.returncode, complaints(done)) == (0, [])


@pytest.mark.parametrize("line", ["NoNewPrivilege=true", "MemoryDenyWriteExecute=perhaps", "SystemCallFilter=@nothing"])
def test_a_wrong_line_is_a_fault(tmp_path: Path, line: str) -> None:
    unit = installed(tmp_path, SERVICE, ())
    unit.write_text(unit.read_text().replace("UMask=0027", line))
    assert complaints(verify(unit))


@_VARIANTS
def test_little_is_left_to_whoever_takes_the_service_over(tmp_path: Path, drop_ins: tuple[Path, ...]) -> None:
    done = analyze("security", "--offline=true", installed(tmp_path, SERVICE, drop_ins))
    score = re.search(r"exposure level for weir\.service: ([\d.]+)", done.stdout)
    assert score is not None, done.stderr
    # The greatest that deploy/README.md tells.
    assert float(score[1]) <= (1.7 if CAPTURE in drop_ins else 1.1)


@pytest.mark.parametrize("unit", [SERVICE, SAMPLES], ids=lambda path: path.name)
def test_service_has_a_bound_on_memory_and_leaves_no_core(unit: Path) -> None:
    assert re.search(r"^MemoryMax=\d+M$", unit.read_text(), re.MULTILINE)
    assert re.search(r"^LimitCORE=0$", unit.read_text(), re.MULTILINE)


def test_systemd_finds_no_fault_in_the_copying_of_samples(tmp_path: Path) -> None:
    service = tmp_path / SAMPLES.name
    service.write_text(SAMPLES.read_text().replace("/usr/bin/rsync", "/bin/true"))
    done = verify(Path(shutil.copy(TIMER, tmp_path)), service)
    assert (done.returncode, complaints(done)) == (0, [])
    score = re.search(
        r"exposure level for weir-samples\.service: ([\d.]+)", analyze("security", "--offline=true", service).stdout
    )
    assert score is not None and float(score[1]) <= 1.1  # as deploy/README.md tells


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_only_finished_samples_are_copied_and_copies_stay(tmp_path: Path) -> None:
    """The copies stay when the samples themselves go."""
    hour = Path("date=2026-11-22", "hour=10")
    here, there = tmp_path / "here", tmp_path / "there"
    (here / hour).mkdir(parents=True)
    for name in ("broker-1-a.jsonl.gz", ".broker-1-b.jsonl.gz"):
        (here / hour / name).write_text(name)
    copy_samples(here, there)
    (here / hour / "broker-1-a.jsonl.gz").unlink()
    (here / hour / ".broker-1-b.jsonl.gz").rename(here / hour / "broker-1-b.jsonl.gz")
    assert [path.name for path in there.rglob("*.gz")] == ["broker-1-a.jsonl.gz"]
    copy_samples(here, there)
    assert sorted(path.name for path in (there / hour).iterdir()) == ["broker-1-a.jsonl.gz", "broker-1-b.jsonl.gz"]


def copy_samples(here: Path, there: Path) -> None:
    """Do as the unit does, onto the same machine."""
    unit = SAMPLES.read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    words = shlex.split(command.replace("${SAMPLES}", str(here)).replace("${REPORTS}", str(there)))
    done = subprocess.run([shutil.which("rsync") or "", *words[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What systemd says about these units; it also reads the machine's own, which are none of ours."""
    return [line for line in done.stderr.splitlines() if re.search(r"\b(weir|kafka)\.(service|conf)\b|weir[.-]", line)]
