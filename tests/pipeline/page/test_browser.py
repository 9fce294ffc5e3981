# SPDX-License-Identifier: Apache-2.0
"""The page in Chromium: what is on it, in light and dark, by keyboard and pointer, on a phone; skipped without it."""

from __future__ import annotations

from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser
from tests.pipeline.page.made_up import make_tables
from tests.pipeline.page.past import Past, broker_minutes, lag, minutes, move, partition_rate, quota
from tests.pipeline.parquet import START
from weir.pipeline.page.read import read_page
from weir.pipeline.page.write import page_of
from weir.pipeline.tables import BROKER_RATES, MOVES, PARTITION_RATES, REPLICA_LAG, THROTTLE_ACCURACY

DESK, PHONE = 1200, 360
HEADINGS = ["Rates against quotas", "Partitions", "Moves", "How exactly quotas were kept", "Slowest replicas"]

_FOCUS = "document.activeElement.closest('section[id]')?.id + ' ' + document.activeElement.className"
_READOUT = "document.activeElement.closest('figure').querySelector('.readout').textContent"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hours of three brokers with 60 partitions, 5 of which had nothing."""
    folder = tmp_path_factory.mktemp("report")
    make_tables(folder / "tables", brokers=3, partitions=60, minutes=120)
    file = folder / "page.html"
    file.write_text(page_of(read_page(folder / "tables", None, None, 20), UTC), encoding="utf-8")
    return file


def _texts(browser: Browser, selector: str) -> Any:
    return browser.evaluate(f"[...document.querySelectorAll('{selector}')].map((found) => found.textContent)")


def _tab_to(browser: Browser, wanted: str, most: int = 60) -> None:
    """Press Tab until the focus is at `wanted`: a section's id and the element's class."""
    for _ in range(most):
        browser.press("Tab")
        if browser.evaluate(_FOCUS) == wanted:
            return
    pytest.fail(f"{wanted} is not reached by keyboard")


def test_page_has_all_its_parts_and_fetches_nothing(browser: Browser, page: Path) -> None:
    browser.look(DESK)
    browser.open(page)
    assert browser.evaluate("document.title") == "Replication report"
    assert _texts(browser, "h2") == ["Answers", *HEADINGS]
    assert _texts(browser, "nav a") == HEADINGS
    assert _texts(browser, "section.broker h3") == ["Broker 1", "Broker 2", "Broker 3"]
    assert _texts(browser, "h4") == ["Leader side", "Follower side", "Clients"] * 3
    assert browser.evaluate("document.querySelectorAll('#rates path.quota').length") == 6
    assert len(_texts(browser, "#partitions .name b")) == 20
    assert _texts(browser, "#partitions .note")[1].endswith("55 partitions; 35 are left out.")
    assert len(_texts(browser, "#moves rect.done")) + len(_texts(browser, "#moves rect.open")) == 6
    assert len(_texts(browser, "#accuracy tbody tr")) == 6
    assert len(_texts(browser, "#slowest tbody tr")) == 7
    assert browser.requests == [page.as_uri()]
    assert browser.complaints == []


def test_marks_are_where_their_values_are(browser: Browser, page: Path) -> None:
    """The first column of a chart begins, and the last one ends, with the chart."""
    browser.look(DESK)
    browser.open(page)
    for chart in ("#rates .plot", "#partitions .strip"):
        edges = browser.evaluate(
            f"(() => {{ const all = document.querySelector('{chart}').getBoundingClientRect();"
            f" const marks = [...document.querySelectorAll('{chart}')][0].querySelectorAll('.m');"
            " return [marks[0].getBoundingClientRect().left - all.left,"
            " marks[marks.length - 1].getBoundingClientRect().right - all.right, all.width]; })()"
        )
        assert edges[:2] == pytest.approx([0, 0], abs=1)
        assert edges[2] > 300


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_is_readable_in_light_and_dark(browser: Browser, page: Path, tmp_path: Path, width: int) -> None:
    pictures, grounds = [], []
    for scheme in ("light", "dark"):
        browser.look(width, scheme=scheme, touch=width == PHONE)
        browser.open(page)
        browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        contrasts = browser.contrasts()
        assert len(contrasts) > 200
        assert [found for found in contrasts if found[0] < 4.5] == []
        grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        pictures.append(browser.picture())
        (tmp_path / f"{scheme}-{width}.png").write_bytes(pictures[-1])
    assert grounds == ["rgb(244, 246, 249)", "rgb(15, 20, 28)"]
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 50_000 for picture in pictures)
    assert pictures[0] != pictures[1]
    assert browser.complaints == []


def test_phone_scrolls_in_one_direction(browser: Browser, page: Path) -> None:
    """Wide tables scroll by themselves."""
    browser.look(PHONE, 740, touch=True)
    browser.open(page)
    browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [PHONE, PHONE]
    browser.evaluate("scrollTo(500, 0)")
    assert browser.evaluate("scrollX") == 0
    assert (
        browser.evaluate(
            "[...document.querySelectorAll('body *')].filter((found) => !found.closest('.scroll, .skip, title')"
            f" && found.getBoundingClientRect().right > {PHONE + 0.5}).map((found) => found.outerHTML.slice(0, 99))"
        )
        == []
    )
    assert browser.evaluate("document.querySelector('#accuracy .scroll').scrollWidth") > PHONE


def test_long_and_evil_names_break_nothing(browser: Browser, past: Past, tmp_path: Path) -> None:
    """A name as long as Kafka allows; Kafka would refuse the other, but whoever wrote the tables may not be Kafka."""
    end = START + minutes(1)
    names = [
        "long-" + "x" * 244,
        "<img src='http://127.0.0.1:9/x' onerror='document.title=1'><script>document.title=2</script>",
    ]
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    for name in names:
        past.put(PARTITION_RATES, partition_rate(0, 10, topic=name))
        past.put(MOVES, move(0, START, end, topic=name))
        past.put(REPLICA_LAG, lag(0, START, None, topic=name))
    file = tmp_path / "page.html"
    file.write_text(page_of(read_page(past.write(), None, None, 9), UTC), encoding="utf-8")
    browser.look(PHONE, 740, touch=True)
    browser.open(file)
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE
    assert sorted(_texts(browser, "#partitions .name b")) == sorted(f"{name}-0" for name in names)
    assert browser.evaluate("document.title") == "Replication report"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.requests == [file.as_uri()]
    assert browser.complaints == []


def test_injected_script_could_not_run(browser: Browser, page: Path) -> None:
    """What the policy of the page refuses, should escaping fail one day: a script, a style, and a fetch."""
    browser.look(DESK)
    browser.open(page)
    browser.evaluate(
        "const bad = document.createElement('script'); bad.textContent = 'document.title = 1';"
        "document.body.append(bad); new Image().src = 'http://127.0.0.1:9/x';"
    )
    assert browser.evaluate("document.title") == "Replication report"
    assert len(browser.complaints) == 2
    assert all("Content Security Policy" in complaint for complaint in browser.complaints)


def test_keyboard_skips_to_the_report(browser: Browser, page: Path) -> None:
    browser.look(DESK)
    browser.open(page)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.id") == "main"


def test_keyboard_reads_the_values_of_a_chart(browser: Browser, page: Path) -> None:
    browser.look(DESK)
    browser.open(page)
    _tab_to(browser, "rates walk")
    whole = browser.evaluate(_READOUT)
    assert whole.endswith("(arrow keys read the values)")
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    titles = _texts(browser, "#rates .plot")
    for key, start in (
        ("ArrowRight", "2026-11-02 00:00 UTC: throttled "),
        ("ArrowRight", "2026-11-02 00:02 UTC: "),
        ("ArrowLeft", "2026-11-02 00:00 UTC: "),
    ):
        browser.press(key)
        shown = browser.evaluate(_READOUT)
        assert shown.startswith(start)
        assert shown in titles[0]
    browser.press("Escape")
    assert browser.evaluate(_READOUT) == whole.removesuffix(" (arrow keys read the values)")


def test_keyboard_walks_through_the_rows_of_the_map(browser: Browser, page: Path) -> None:
    browser.look(DESK)
    browser.open(page)
    _tab_to(browser, "partitions walk")
    names = _texts(browser, "#partitions .name b")
    read = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        browser.press(key)
        read.append(browser.evaluate(_READOUT).rpartition(": ")[0])
    at, later = "2026-11-02 00:00 UTC", "2026-11-02 00:02 UTC"
    assert read == [f"{names[0]}, {at}", f"{names[0]}, {later}", f"{names[1]}, {later}", f"{names[0]}, {later}"]
    assert browser.evaluate("document.querySelectorAll('.m.on').length") == 1


def test_keyboard_opens_the_table_behind_a_chart(browser: Browser, page: Path) -> None:
    browser.look(DESK)
    browser.open(page)
    _tab_to(browser, "moves walk")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.tagName") == "SUMMARY"
    browser.press("Enter")
    browser.press("Tab")
    assert browser.evaluate(_FOCUS) == "moves scroll"
    assert browser.evaluate("document.activeElement.querySelectorAll('tbody tr').length") == 6


def test_pointer_reads_the_mark_below_it(browser: Browser, page: Path) -> None:
    browser.look(DESK)
    browser.open(page)
    bar = "document.querySelector('#moves rect.done')"
    browser.evaluate(f"{bar}.scrollIntoView({{block: 'center'}})")
    box = browser.evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({bar}.getBoundingClientRect())")
    readout = "document.querySelector('#moves .readout').textContent"
    whole = browser.evaluate(readout)
    browser.point(box[0] + box[2] / 2, box[1] + box[3] / 2)
    assert browser.evaluate(readout) == browser.evaluate(f"{bar}.textContent")
    browser.point(1, 1)
    assert browser.evaluate(readout) == whole


def test_rows_of_tables_are_one_line_on_a_phone(browser: Browser, page: Path) -> None:
    browser.look(400, 740, touch=True)
    browser.open(page)
    highest = "Math.max(...[...document.querySelectorAll('#accuracy tbody tr')].map((row) => row.offsetHeight))"
    assert browser.evaluate(highest) < 50


def test_accuracy_table_fits_on_a_small_desk(browser: Browser, past: Past, tmp_path: Path) -> None:
    """Values as long as they come, and times with their dates: nothing has to be scrolled."""
    begin = START - timedelta(days=400)
    longest = {"worst_1s_over_quota": 1234.567, "worst_10s_over_quota": 123.456, "policy": "strict"}
    big = {"broker_id": 10_001, "side": "follower", "seconds_over": 1_234_567.0, "bytes_left_out": 123_456_000_000}
    past.put(BROKER_RATES, *broker_minutes(10_001, "follower", (1, 1)))
    past.put(THROTTLE_ACCURACY, quota(begin, START + minutes(1), 123_400_000, mean=0.998, **longest, **big))
    file = tmp_path / "page.html"
    file.write_text(page_of(read_page(past.write(), begin, START + minutes(1), 9), UTC), encoding="utf-8")
    browser.look(1280)
    browser.open(file)
    part = "document.querySelector('#accuracy .scroll')"
    assert browser.evaluate(f"{part}.scrollWidth") <= browser.evaluate(f"{part}.clientWidth")
