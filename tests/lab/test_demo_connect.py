# SPDX-License-Identifier: Apache-2.0
"""What `weir demo --connect` promises, and when it says that a promise is broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.curves import by_second, steady
from weir.lab import demo, demo_connect
from weir.lab.connect_chart import draw_sinks
from weir.lab.demo_connect import FREE, LIMITED, Plan, Seen, promises
from weir.lab.received import Series

pytestmark = pytest.mark.long

PLAN = Plan(records=10_000, chart=Path("chart.png"))
LINES = [f"{number:06d}" for number in range(PLAN.records)]
JOINED = "".join(f"groupId=connect-{name}] Successfully joined group with generation\n" for name in (LIMITED, FREE))
GOOD = Seen(
    written={LIMITED: steady(1000, 10.0), FREE: steady(5000, 2.0)},
    lines={LIMITED: LINES, FREE: [*reversed(LINES)]},
    log=JOINED,
    waited={LIMITED: 0.9},
)


def broken(seen: Seen) -> list[int]:
    """The places of the promises that were not held."""
    return [place for place, (_, held) in enumerate(promises(seen, PLAN)) if not held]


def sinks(limited: Series = GOOD.written[LIMITED], free: Series = GOOD.written[FREE]) -> Seen:
    return replace(GOOD, written={LIMITED: limited, FREE: free})


def test_all_is_held() -> None:
    assert broken(GOOD) == []
    assert (
        promises(GOOD, PLAN)[0][0] == "the limited sink wrote 1.000 x 1,000 records/s (0.93 to 1.02, and a poll of 100)"
    )


@pytest.mark.parametrize(
    ("seen", "place"),
    [
        (sinks(limited=steady(900, 11.0)), [0]),
        (sinks(limited=steady(1040, 10.0)), [0]),
        (sinks(limited=by_second([1000, 1151, 849, *[1000] * 7])), [1]),
        (sinks(free=steady(2900, 4.0)), [2]),
        (replace(GOOD, lines={LIMITED: LINES, FREE: LINES[1:]}), [3]),
        (replace(GOOD, lines={LIMITED: [*LINES, LINES[0]], FREE: LINES}), [3]),
        (replace(GOOD, lines={LIMITED: [], FREE: []}), [3]),
        (replace(GOOD, waited={}), [4]),
        (replace(GOOD, waited={LIMITED: 0.9, FREE: 0.1}), [4]),
        (replace(GOOD, log=JOINED + JOINED), [5]),
        (replace(GOOD, log=""), [5]),
        (replace(GOOD, log=JOINED + "org.apache.kafka.common.errors.TimeoutException: no\n"), [5]),
    ],
)
def test_a_promise_that_was_broken_is_told(seen: Seen, place: list[int]) -> None:
    assert broken(seen) == place


def test_chart_is_drawn(tmp_path: Path) -> None:
    draw_sinks(tmp_path / "chart.png", GOOD.written, PLAN.limit)
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seen", "status"), [(GOOD, 0), (replace(GOOD, log=""), 1)])
def test_demo_succeeds_only_when_every_promise_was_held(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seen: Seen,
    status: int,
) -> None:
    monkeypatch.setattr(demo_connect, "Plan", lambda chart: replace(PLAN, chart=chart))
    monkeypatch.setattr(demo_connect, "_run", lambda console, plan, folder: seen)
    assert demo.main("connect", tmp_path / "out") == status
    shown = capsys.readouterr().out
    assert shown.count("BROKEN") == status
    assert shown.endswith(f"chart  {tmp_path}/out/demo-connect.png\n")
    assert (tmp_path / "out" / "demo-connect.png").exists()
