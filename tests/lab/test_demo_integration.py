# SPDX-License-Identifier: Apache-2.0
"""The demo on real brokers: a smaller move, and Ctrl-C in the middle of it."""

import re
import signal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.installed import Environment
from tests.lab.programs import processes_of, python
from weir.lab import demo_connect

pytestmark = pytest.mark.integration


def test_fast_demo_of_the_wheel_holds_every_promise(tmp_path: Path, wheel: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(wheel)
    here, temporary, home = (tmp_path / name for name in ("here", "temporary", "home"))
    for folder in (here, temporary, home):
        folder.mkdir()
    done = environment.run("weir", "demo", "--fast", cwd=here, TMPDIR=str(temporary), HOME=str(home))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  held   ") == 7
    assert " of v18, 0 undecoded; " in done.stdout
    assert done.stdout.count(" x quota), ") >= 1  # a line of progress
    assert sorted(path.relative_to(here) for path in here.rglob("*.*")) == [Path("out/demo.html"), Path("out/demo.png")]
    assert (here / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "orders" in (here / "out" / "demo.html").read_text()
    assert list(temporary.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_connect_demo_with_fewer_records_holds_every_promise(own_temporary_folder: Path) -> None:
    shown = StringIO()
    # on a busy machine the unlimited sink writes less than a thousand records a second
    chart = own_temporary_folder / "connect.png"
    plan = demo_connect.Plan(records=1500, limit=150, least_mean=0.8, chart=chart)
    assert demo_connect.run(Console(file=shown, width=120), plan) == 0, shown.getvalue()
    text = shown.getvalue()
    assert text.count("  held   ") == 6
    assert re.search(r" s  limited +[\d,]+, +[\d,]+/s   unlimited +1,500, ", text), text  # a line of progress
    assert plan.chart.read_bytes().startswith(b"\x89PNG")
    assert processes_of(own_temporary_folder) == []


def test_demo_stopped_by_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with python(tmp_path, "-m", "weir", "demo", "--fast") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if " x quota), " in line:  # the move is under way, live clients and all
                break
        assert processes_of(tmp_path)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 130
        *progress, last = demo.stdout.read().splitlines()
        assert last == "Stopped: the brokers and their sidecars have ended, their files are gone."
        assert all(" x quota), " in line for line in progress)  # one may have come before the signal
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
