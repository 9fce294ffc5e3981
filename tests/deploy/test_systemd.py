"""The units: systemd itself checks them, and says how much a service could do that was taken over."""

from __future__ import annotations

import re
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


def test_systemd_finds_no_fault_in_a_broker_bound_to_its_sidecar(tmp_path: Path) -> None:
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


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What systemd says about these units; it also reads the machine's own, which are none of ours."""
    return [line for line in done.stderr.splitlines() if re.search(r"\b(weir|kafka)\.(service|conf)\b|weir\.", line)]
