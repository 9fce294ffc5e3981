# SPDX-License-Identifier: Apache-2.0
from io import StringIO

from rich.console import Console

from tests.lab.curves import by_second
from weir.lab.progress import Moment, Progress, Traffic, as_line, sparkline
from weir.lab.received import Series

TRAFFIC = Traffic(produced=120, acked=119, consumed=118, p99=0.0125)


def moment(received: Series, size: int = 10_000_000) -> Moment:
    return Moment(received, size, 1_000_000, TRAFFIC)


def test_line_tells_what_came_at_which_rate_and_what_is_left() -> None:
    assert as_line(moment(by_second([1_000_000, 1_100_000]))) == (
        "    2 s: 2.1 of 10.0 MB, last second 1.10 MB (1.10 x quota), 8 s left; live topic: "
        "120 produced, 119 acked, 118 consumed, p99 12 ms end to end"
    )


def test_line_before_the_first_whole_second_counts_what_came() -> None:
    assert "last second 0.30 MB (0.30 x quota)" in as_line(moment(Series((0.0, 0.5), (0, 300_000))))


def test_line_of_more_than_was_expected_has_nothing_left() -> None:
    assert " 0 s left" in as_line(moment(by_second([3_000_000]), size=2_000_000))


def test_sparkline_has_the_quota_at_half_its_height() -> None:
    bars = sparkline([0, 250, 500, 1000, 1040, 1500, 2000, 9000], 1000)
    assert bars.plain == "▁▁▂▄▄▆██"
    above = {position for span in bars.spans if span.style == "red" for position in range(span.start, span.end)}
    assert above == {5, 6, 7}


def test_log_gets_a_line_every_five_seconds() -> None:
    now = 100.0
    out = StringIO()
    with Progress(Console(file=out), clock=lambda: now) as progress:
        for _ in range(44):
            now += 0.25
            progress.show(moment(by_second([1_000_000])))
    assert out.getvalue().splitlines() == [as_line(moment(by_second([1_000_000])))] * 2


def test_terminal_shows_the_moment_in_place() -> None:
    """Each drawing is over the last one: bar, finished seconds, the last second, and the live topic."""
    out = StringIO()
    with Progress(Console(file=out, force_terminal=True, color_system=None, width=120)) as progress:
        progress.show(moment(by_second([1_000_000])))
        before = out.tell()
        progress.show(moment(by_second([1_000_000, 2_000_000, 500_000, 100_000])))
        drawn = out.getvalue()[before:]
    assert "\x1b[1A" in drawn  # the cursor goes up again
    assert "━" in drawn
    assert "3.6 of 10.0 MB" in drawn
    assert "6 s left" in drawn
    assert " ▄█▂ " in drawn
    assert "last second" in drawn
    assert "120 produced, 119 acked, 118 consumed, p99 12 ms end to end" in drawn
