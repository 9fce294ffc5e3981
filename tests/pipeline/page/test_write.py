# SPDX-License-Identifier: Apache-2.0
"""The page as text: what it says, what it escapes, and that it fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, timedelta
from html.parser import HTMLParser
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.pipeline.page.past import (
    Past,
    absence,
    broker_minutes,
    client_minutes,
    coverage,
    lag,
    minutes,
    move,
    partition_rate,
    publish,
    quota,
    quota_minute,
)
from tests.pipeline.parquet import START
from weir.pipeline.page.broker_charts import broker_charts
from weir.pipeline.page.contents import Contents
from weir.pipeline.page.heat_map import LEVELS, level_of
from weir.pipeline.page.markup import Element
from weir.pipeline.page.read import read_page
from weir.pipeline.page.timeline import Timeline
from weir.pipeline.page.write import page_of, summary
from weir.pipeline.tables import (
    ABSENCES,
    BROKER_RATES,
    CLIENT_RATES,
    COVERAGE,
    MOVES,
    PARTITION_RATES,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    THROTTLE_MINUTES,
)

pytestmark = pytest.mark.long

EVIL = "<script>alert('t')</script>&\"x"


def _titles(page: str, kind: str) -> list[str]:
    return re.findall(rf'class="m {kind}"[^>]*><title>(.*?)</title>', page)


class _Parsed(HTMLParser):
    """The elements of a page with their attributes' names, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, ...]] = Counter()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[(tag, *(name for name, _ in attrs))] += 1

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    """A page with such names has the elements of one with plain names, and them in its texts."""
    pages: list[_Parsed] = []
    for name in (EVIL, "plain"):
        past = Past(tmp_path / str(len(pages)))
        end = START + minutes(1)
        past.put(BROKER_RATES, *broker_minutes(1, name, (1, 1)))
        past.put(PARTITION_RATES, partition_rate(0, 10, topic=name))
        past.put(MOVES, move(0, START, end, topic=name))
        past.put(REPLICA_LAG, lag(0, START, end, topic=name))
        past.put(THROTTLE_ACCURACY, quota(START, end, quota_id=name, policy=name))
        pages.append(_Parsed(page_of(read_page(past.write(), None, None, 9), UTC)))
    assert pages[0].elements == pages[1].elements
    found = [
        sum(name in text.lower() for text in page.texts) for name, page in zip((EVIL, "plain"), pages, strict=True)
    ]
    assert found == [12, 12]


def test_page_allows_its_own_style_and_script_and_nothing_else(past: Past) -> None:
    page = page_of(read_page(past.write(), START, None, 9), UTC)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    for name in ("style", "script"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}';" in policy
    assert "style=" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:,)", page)
    assert "//" not in re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)


def test_empty_range_says_so(past: Past) -> None:
    contents = read_page(past.write(), START, START + timedelta(days=1), 9)
    sentence = "Nothing was sampled from 2026-11-02 01:00 CET to 2026-11-03 01:00 CET."
    assert f'<p class="nothing">{sentence}</p>' in page_of(contents, ZoneInfo("Europe/Berlin"))
    assert summary(contents, ZoneInfo("Europe/Berlin")) == sentence
    assert "The tables have no rows." in page_of(Contents(), UTC)


def test_section_without_rows_says_so(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    contents = read_page(past.write(), None, None, 9)
    page = page_of(contents, UTC)
    assert re.findall(r'<p class="nothing">(.*?)</p>', page) == [
        "No partition was sampled in this range.",
        "No replica moved in this range.",
        "No quota was in force in this range.",
        "No replica was out of sync in this range.",
    ]
    assert re.findall("<dd>(.*?)</dd>", page) == [
        *("1", "0 partitions"),
        *("120 B", "50% of it throttled"),
        *("-", "no quota in force"),
        *("0", "none"),
        *("0", "0.0 s without bytes at most"),
    ]
    assert summary(contents, UTC) == (
        "1 broker, 0 partitions, 0 quotas, 0 moves, 2026-11-02 00:00 UTC to 2026-11-02 00:01 UTC."
    )


def test_column_of_a_broker_reads_its_rates_and_quota(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (4e6, 1e6), None, (0, 2e6)))
    past.put(THROTTLE_ACCURACY, quota(START, START + minutes(1), 5_000_000))
    assert _titles(page_of(read_page(past.write(), None, None, 9), UTC), "column") == [
        "2026-11-02 00:00 UTC: throttled 4 MB/s (highest 4 MB/s), others 1 MB/s, quota 5 MB/s",
        "2026-11-02 00:01 UTC: no samples",
        "2026-11-02 00:02 UTC: throttled 0 B/s (highest 0 B/s), others 2 MB/s",
    ]


def test_page_tells_what_it_was_made_of_and_who_was_away(past: Past) -> None:
    """Of another day nothing is told. Broker 3 is missed by two sidecars, and broker 2 came back."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *[(1, 1)] * 10))
    past.put(COVERAGE, coverage(START, missing=3), coverage(START + minutes(1), quarantined=1))
    past.put(COVERAGE, coverage(START + timedelta(days=1), missing=50))
    past.put(ABSENCES, absence(3, START + minutes(2), None, 9), absence(3, START + minutes(2), None, 8, broker_id=4))
    past.put(ABSENCES, absence(2, START + minutes(1), START + minutes(3), 3))
    folder = past.write()
    for day, until in (("2026-11-02", "00:10:00"), ("2026-11-03", "09:00:00")):
        publish(folder, day, clusters=["abc"], made_at="2026-11-03T01:00:00Z", until=f"{day}T{until}Z")
    page = page_of(read_page(folder, START, START + minutes(10), 9), UTC)
    assert (
        "Cluster abc; tables built 2026-11-03 01:00:00 UTC; last sample 2026-11-02 00:10:00 UTC; 3 samples missing;"
        " 1 sample quarantined" in page
    )
    assert "No replica was out of sync in this range as far as is known; some brokers were away." in page
    rows = re.findall("<tr>(.*?)</tr>", page.split('id="away"')[1])[1:]
    assert [re.sub("<.*?>", " ", row).split() for row in rows] == [
        ["3", "&gt;", "7", "min", "2026-11-02", "00:02", "UTC", "not", "seen"],
        ["2", "2", "min", "2026-11-02", "00:01", "UTC", "2026-11-02", "00:03", "UTC"],
    ]


def test_sampled_broker_without_a_connection_has_rate_zero(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1e6, 0), None, None, (1e6, 0)))
    past.put(COVERAGE, coverage(START + minutes(1)))
    assert _titles(page_of(read_page(past.write(), None, None, 9), UTC), "column")[1:3] == [
        "2026-11-02 00:01 UTC: throttled 0 B/s (highest 0 B/s), others 0 B/s",
        "2026-11-02 00:02 UTC: no samples",
    ]


def _charts(past: Past, *rates: tuple[float, float] | None, limits: Sequence[int]) -> list[Element]:
    """The parts of a broker's charts, with a minute of each quota."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *rates))
    for number, limit in enumerate(limits):
        past.put(THROTTLE_ACCURACY, quota(START + minutes(number), START + minutes(number + 1), limit))
    contents = read_page(past.write(), None, None, 9)
    assert contents.columns is not None
    return list(broker_charts(contents.brokers, Timeline(contents.columns, UTC)))


def _paths(parts: Iterable[Element]) -> dict[str, str]:
    return {path.attrib["class"]: path.attrib["d"] for part in parts for path in part.iter("path")}


def test_shapes_of_a_broker_are_steps_with_gaps(past: Past) -> None:
    """Of 1000 units, 649 are 1.08 times the highest of throttled rates and quota, and the others are below them."""
    assert _paths(_charts(past, (54, 27), (27, 54), None, (0, 54), limits=[100] * 4)) == {
        "area unsampled": "M2 1000L2 0H3V1000Z",
        "area throttled": "M0 649L0 325H1V487H2V649Z M3 649L3 649H4V649Z",
        "area unthrottled": "M0 649L0 812H1V974H2V649Z M3 649L3 974H4V649Z",
        "line peak": "M0 325H1V487H2",
        "line quota": "M0 48H1V48H2V48H3V48H4",
    }


@pytest.mark.parametrize(
    ("limits", "drawn", "text"),
    [
        ([100, 100], None, "quota 100 B/s, above this chart"),
        ([40, 100], "M0 59H1", "quota 40 B/s to 100 B/s, partly above this chart"),
        ([40, 40], "M0 59H1V59H2", "quota 40 B/s"),
    ],
)
def test_quota_far_above_the_rates_is_told_and_not_drawn(
    past: Past, limits: list[int], drawn: str | None, text: str
) -> None:
    parts = _charts(past, (10, 10), (10, 10), limits=limits)
    assert _paths(parts).get("line quota") == drawn
    readouts = [found.text for part in parts for found in part.iter("p") if found.attrib["class"] == "readout"]
    assert readouts == [f"mean: throttled 10 B/s while a quota was in force (highest 10 B/s), others 10 B/s; {text}"]


def test_heat_has_a_level_for_each_doubling() -> None:
    rates = [0, 0.001, 1.5625, 1.6, 3.2, 12.5, 50, 50.1, 100]
    assert [level_of(rate, 100) for rate in rates] == [0, 1, 1, 2, 3, 4, 6, 7, LEVELS]


def test_cells_of_a_partition_leave_out_what_is_0(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (0, 1), (0, 1), None, None, (0, 1)))
    past.put(PARTITION_RATES, partition_rate(7, 3e6), partition_rate(7, 5e6, START + minutes(4)))
    page = page_of(read_page(past.write(), None, None, 9), UTC)
    assert _titles(page, "heat[67]") == [
        "orders-7, 2026-11-02 00:00 UTC: 3 MB/s",
        "orders-7, 2026-11-02 00:04 UTC: 5 MB/s",
    ]
    assert page.count('class="m heat') == 2
    assert _titles(page, "gap") == ["orders-7, 2026-11-02 00:02 UTC: no samples"]
    assert 'class="m gap" x="40.000%" width="40.000%"' in page


def test_bar_of_a_move_reads_its_figures(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *[(1, 1)] * 10))
    past.put(MOVES, move(7, START + minutes(1), START + minutes(6)), move(8, START + minutes(2), None))
    page = page_of(read_page(past.write(), None, None, 9), UTC)
    assert _titles(page, "done") == [
        "orders-7 on 3: behind since 2026-11-02 00:01 UTC, caught up 2026-11-02 00:06 UTC, after 5 min;"
        " 6 kB at 100 B/s, quota 1 MB/s, longest stall 1.5 s"
    ]
    assert 'class="m done" x="10.000%" width="50.000%"' in page
    assert 'class="m open" x="20.000%" width="80.000%"' in page
    assert ", not seen to catch up until 2026-11-02 00:10 UTC; " in _titles(page, "open")[0]


def test_bar_of_a_short_move_can_be_seen(past: Past) -> None:
    """At the very end of the range, too."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *[(1, 1)] * 10))
    end = START + minutes(10)
    past.put(MOVES, move(7, end - timedelta(milliseconds=5), end - timedelta(milliseconds=3)))
    assert 'class="m done" x="99.600%" width="0.400%"' in page_of(read_page(past.write(), None, None, 9), UTC)


def test_page_of_many_partitions_shows_some_and_counts_the_rest(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (0, 1)))
    past.put(PARTITION_RATES, *(partition_rate(number, 1000 + number) for number in range(500)))
    page = page_of(read_page(past.write(), None, None, 3), UTC)
    assert "Shown are the 3 with the most bytes in of 500 partitions; 497 are left out." in page
    assert [name in page for name in ("orders-499", "orders-497", "orders-496")] == [True, True, False]


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_rates_of_nearly_nothing_are_drawn(past: Past, rate: float) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (rate, rate)))
    past.put(PARTITION_RATES, partition_rate(0, rate))
    page = page_of(read_page(past.write(), None, None, 9), UTC)
    assert f"throttled {rate:g} B/s (highest {rate:g} B/s)" in page


def test_times_of_the_page_are_in_the_zone(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    contents = read_page(past.write(), None, None, 9)
    page = page_of(contents, ZoneInfo("America/New_York"))
    assert '<time datetime="2026-11-02T00:00:00Z">2026-11-01 19:00 EST</time>' in page


def test_page_says_whom_no_quota_holds_and_what_holds_the_stuck(past: Past) -> None:
    """It says what may hold a stuck replica."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 9)))
    past.put(REPLICA_LAG, lag(0, START, START + minutes(1), stuck=(40,)))
    page = page_of(read_page(past.write(), None, None, 9), UTC)
    assert "other replicas, below the line: no quota holds them" in page
    assert "quota in force, of throttled replicas alone" in page
    assert "Where nothing came for more than 30 s, one was stuck, or a throttle held it." in page
    assert "times without bytes" in page


def test_means_of_a_chart_count_only_while_a_quota_was_in_force(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (8e6, 0), (0, 0), (0, 0), (0, 0)))
    past.put(THROTTLE_ACCURACY, quota(START, START + minutes(1), 10_000_000))
    page = page_of(read_page(past.write(), None, None, 9), UTC)
    assert "mean: throttled 8 MB/s while a quota was in force (highest 8 MB/s)" in page


def test_charts_share_a_scale_and_begin_with_longest_held_back(past: Past) -> None:
    """Broker 2 has fewer bytes, a fifth of broker 1's height, and a quota that bound."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (100, 0)), *broker_minutes(2, "leader", (20, 0)))
    past.put(THROTTLE_MINUTES, quota_minute({**quota(START, START + minutes(1)), "broker_id": 2}, START))
    contents = read_page(past.write(), None, None, 1)
    assert [side.broker_id for side in contents.brokers.shown] == [2]
    contents = read_page(past.folder, None, None, 9)
    assert contents.columns is not None
    parts = list(broker_charts(contents.brokers, Timeline(contents.columns, UTC)))
    shapes = [path.attrib for part in parts for path in part.iter("path")]
    heights = [shape["d"] for shape in shapes if shape["class"] == "line peak"]
    assert heights == ["M0 815H1", "M0 74H1"]


@pytest.mark.parametrize(
    ("policy", "worst", "is_red"),
    [("strict", 1.001, False), ("strict", 1.04, False), ("strict", 1.06, True), ("kip73", 3.0, False)],
)
def test_only_what_is_beyond_the_promise_is_red(past: Past, policy: str, worst: float, is_red: bool) -> None:
    """At 100 MB/s a batch of 1 MB makes 0.01."""
    row = quota(START, START + minutes(1), 100_000_000, policy=policy, worst_1s_over_quota=worst, seconds_over=9.0)
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    past.put(THROTTLE_ACCURACY, row)
    assert ('class="over"' in page_of(read_page(past.write(), None, None, 9), UTC)) is is_red


def test_clients_are_drawn_below_their_broker_on_one_scale(past: Past) -> None:
    """Of broker 2 half as much was read as of broker 1, and of broker 3 nothing is known."""
    past.put(BROKER_RATES, *(row for broker_id in (1, 2, 3) for row in broker_minutes(broker_id, "leader", (5, 5))))
    past.put(CLIENT_RATES, *client_minutes(1, (10**6, 10**5)), *client_minutes(2, (5 * 10**5, 10**5)))
    page = page_of(read_page(past.write(), None, None, 9), UTC)
    assert page.count("<h4>Clients</h4>") == 2
    assert "2026-11-02 00:00 UTC: clients read 1 MB/s and wrote 100 kB/s" in page
    assert "mean: read 500 kB/s (highest 500 kB/s), written 100 kB/s" in page
    heights = [int(height) for height in re.findall(r'class="area read" d="M0 (\d+)L', page)]
    tops = [int(top) for top in re.findall(r'class="area read" d="M0 \d+L0 (\d+)H', page)]
    assert heights[0] == heights[1] == 909  # both have their line of 0 there: 1.08 above it, 0.108 below
    assert heights[0] - tops[0] == pytest.approx(2 * (heights[1] - tops[1]), abs=2)
    ends = [int(end) for end in re.findall(r'class="area written" d="M0 \d+L0 (\d+)H', page)]
    assert len(ends) == 2
    assert min(ends) > heights[0]


def test_page_without_clients_says_nothing_of_them(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (5, 5)))
    assert "lients</h4>" not in (page := page_of(read_page(past.write(), None, None, 9), UTC))
    assert "by clients" not in page
