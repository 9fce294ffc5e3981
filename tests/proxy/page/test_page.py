# SPDX-License-Identifier: Apache-2.0
"""The page of the admin server in Chromium, over made-up sidecars; skipped without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from tests.browser import Browser
from tests.proxy.page.made_up import (
    HOSTILE,
    LONGEST,
    MB,
    MOVING,
    MadeUp,
    fleet_row,
    lag,
    late,
    limit_samples,
    limited,
    link,
    quota,
    samples,
    served,
    side,
    status,
    waiting,
    waves,
)
from weir.proxy.admin.page.write import headers, page

DESK, PHONE = 1280, 360
IS_SHOWN = "document.querySelector('#sides .readout')?.textContent.startsWith('Last minute')"
FLEET_IS_SHOWN = "document.querySelectorAll('#fleet tbody tr').length > 0"


@pytest.fixture
def sidecar() -> MadeUp:
    return MadeUp()


@pytest.fixture
def url(sidecar: MadeUp) -> Iterator[str]:
    with served(sidecar) as address:
        yield address


def _texts(browser: Browser, selector: str) -> Any:
    return browser.evaluate(f"[...document.querySelectorAll('{selector}')].map((found) => found.textContent)")


def _rows(browser: Browser, section: str) -> list[list[str]]:
    script = (
        f"[...document.querySelectorAll('{section} tbody tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    found: list[list[str]] = browser.evaluate(script)
    return found


def _open(browser: Browser, url: str, width: int = DESK, scheme: str = "light") -> None:
    browser.look(width, 740 if width == PHONE else 900, scheme=scheme, touch=width == PHONE)
    browser.open(url)
    browser.wait_for(f"{IS_SHOWN} && {FLEET_IS_SHOWN}")


def test_page_shows_this_sidecar_and_asks_nobody_else(browser: Browser, url: str) -> None:
    _open(browser, url)
    assert _texts(browser, "h1") == ["Broker 1"]
    assert _texts(browser, "#states li") == ["ready"]
    assert _texts(browser, "#leader .verdict") == [MOVING["held_up_by"]["sentence"]]
    assert _texts(browser, "#leader .figures dd") == [
        *("4.96 MB/s", "99 % of the quota", "5 MB/s", "from http, 1 h 13 min left"),
        *("12", "partitions, 1,234,567 messages", "4 min 15 s", "falls by 4,843 messages/s"),
    ]
    assert _rows(browser, "#leader .late")[0][:3] == ["orders-0 replica 2", "400,000", "12 min 35 s"]
    assert _rows(browser, "#leader .links") == [["2", "2", "12", "less than 1 s"], ["3", "1", "0", "-"]]
    assert _rows(browser, "#throttle") == [
        ["leader.replication.throttled.rate", "5 MB/s", "http", "yes", "-", "-"],
        ["orders: leader.replication.throttled.replicas", "*", "http", "yes", "-", "-"],
        ["follower.replication.throttled.rate", "20 MB/s", "http", "yes", "1 h 13 min", "ann: new disks"],
    ]
    assert _rows(browser, "#passes") == [
        ["Fetches of a newer version than weir knows", "leader", "12", "-"],
        ["Connections with TLS", "leader", "3", "-"],
    ]
    assert {request.partition("?")[0].removeprefix(url) for request in browser.requests} == {
        *("", "v1/status", "v1/history", "v1/throttle", "v1/fleet")
    }
    assert browser.complaints == []


def test_page_shows_the_fleet_and_who_does_not_answer(browser: Browser, url: str) -> None:
    _open(browser, url)
    rows = _rows(browser, "#fleet")
    assert [row[0] for row in rows] == ["1", "", "2", "", "3"]
    assert rows[0][1:7] == ["ready", "leader", "4.96 MB/s", "5 MB/s", "12", "4 min 15 s"]
    assert rows[4] == ["3", "no answer", "10.0.0.3:9690: Connection refused."]
    assert _texts(browser, "#fleet .note") == ["2 of 3 sidecars answer. 12 partitions behind."]
    assert browser.evaluate("document.querySelector('#fleet a').href") == "http://10.0.0.1:9690/"


def test_page_shows_a_sidecar_that_waits(browser: Browser, sidecar: MadeUp, url: str) -> None:
    sidecar.others.answer = [fleet_row(1), {**waiting(), "admin": "10.0.0.4:9690", "broker_id": 4}]
    _open(browser, url)
    assert _rows(browser, "#fleet")[2:] == [["4", "waiting", "10.0.0.4:9690: tokens: no such file."]]


def test_page_without_a_cluster_has_no_fleet_and_asks_for_none(browser: Browser, sidecar: MadeUp, url: str) -> None:
    sidecar.told["fleet"] = False
    browser.open(url)
    browser.wait_for(IS_SHOWN)
    assert browser.evaluate("document.querySelector('#fleet').hidden")
    assert sidecar.others.looks == 0


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_is_readable_in_light_and_dark(browser: Browser, url: str, width: int) -> None:
    grounds, pictures = [], []
    for scheme in ("light", "dark"):
        _open(browser, url, width, scheme)
        contrasts = browser.contrasts()
        assert len(contrasts) > 100
        assert [found for found in contrasts if found[0] < 4.5] == []
        grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        pictures.append(browser.picture())
    assert grounds == ["rgb(244, 246, 249)", "rgb(15, 20, 28)"]
    assert pictures[0] != pictures[1]
    assert browser.complaints == []


def test_phone_scrolls_in_one_direction(browser: Browser, url: str) -> None:
    _open(browser, url, PHONE)
    assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [PHONE, PHONE]
    assert (
        browser.evaluate(
            "[...document.querySelectorAll('body *')].filter((found) => !found.closest('.scroll, .skip, svg')"
            f" && found.getBoundingClientRect().right > {PHONE + 0.5}).map((found) => found.outerHTML.slice(0, 99))"
        )
        == []
    )
    cut = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth)"
    shades = browser.evaluate(f"{cut}.map((one) => getComputedStyle(one).backgroundAttachment)")
    assert shades and set(shades) == {"local, local, scroll, scroll"}  # columns beyond the edge are told by a shade


def test_hostile_and_long_names_are_text(browser: Browser, sidecar: MadeUp, url: str) -> None:
    """What any string of any answer is made of: it runs nothing, loads nothing, and breaks no line."""
    worst = [late(HOSTILE, 0, 5), late(LONGEST, 1, 5)]
    evil = side(
        passthrough={HOSTILE: 1},
        throttled_topics=[HOSTILE],
        links=[link(2)],
        lag=lag(partitions_behind=2, worst=worst),
        held_up_by={"by": "quota", "sentence": HOSTILE},
    )
    sidecar.told = {**status(leader=evil), "version": HOSTILE, "not_ready": [HOSTILE], "ready": False}
    error = {"admin": "x:1", "broker_id": None, "error": HOSTILE}
    sidecar.others.answer = [{**fleet_row(1, leader=evil), "version": HOSTILE}, error]
    _open(browser, url, PHONE)
    assert [text.removesuffix(" replica 2") for text in _texts(browser, "#leader .late tbody th")] == [
        f"{HOSTILE}-0",
        f"{LONGEST}-1",
    ]
    assert _texts(browser, "#leader .verdict") == [HOSTILE]
    assert _texts(browser, "#trouble") == [f"Not ready: {HOSTILE}."]
    assert browser.evaluate("[document.title, document.querySelectorAll('img').length]") == ["weir, broker 1", 0]
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE
    assert all(request.startswith(url) for request in browser.requests)
    assert browser.complaints == []


def test_injected_script_could_not_run(browser: Browser, url: str) -> None:
    """What the page's policy refuses, should escaping fail one day: a script, an image, and a question to others."""
    _open(browser, url)
    browser.evaluate(
        "const bad = document.createElement('script'); bad.textContent = 'document.title = 1';"
        "document.body.append(bad); new Image().src = 'http://127.0.0.1:9/x';"
        "fetch('http://127.0.0.1:9/x').catch(() => {});"
    )
    assert browser.evaluate("document.title") == "weir, broker 1"
    browser.wait_for("true")
    assert len(browser.complaints) >= 3
    assert all("Content Security Policy" in complaint for complaint in browser.complaints)


def test_chart_draws_what_passed_where_it_passed(browser: Browser, sidecar: MadeUp, url: str) -> None:
    """Five minutes at half the quota: the area fills the right half of the chart, up to half the quota's line."""
    sidecar.samples.sides["leader"] = samples([2.5 * MB] * 300, 5 * MB)
    _open(browser, url)
    boxes = browser.evaluate(
        "['.plot', '.area.throttled', '.line'].map((part) => document.querySelector(`#leader ${part}`))"
        ".map((found) => found.tagName === 'svg' ? found.getBoundingClientRect() : found.getBBox())"
        ".map(({ x, y, width, height }) => [x, y, width, height])"
    )
    plot, area, line = boxes
    base = area[1] + area[3]
    assert area[2] == pytest.approx(plot[2] / 2, rel=0.02)
    assert base - area[1] == pytest.approx((base - line[1]) / 2, rel=0.02)
    assert line[0] + line[2] == pytest.approx(plot[2], abs=1)


def test_each_quota_has_a_chart_and_an_observed_one_says_so(browser: Browser, sidecar: MadeUp, url: str) -> None:
    columns = samples([2.5 * MB] * 300, 5 * MB)
    columns["quotas"]["recovery"] = {"rate": [1.0 * MB] * 300, "limit": [None] * 100 + [1 * MB] * 200}
    columns["quotas"][HOSTILE] = {"rate": [3.0 * MB] * 300, "limit": [2 * MB] * 300}
    sidecar.samples.sides["leader"] = columns
    observed = quota(HOSTILE, 2 * MB, 3.0 * MB, mode="observe", would_leave_out=7)
    quotas = [quota("configured", 5 * MB, 2.5 * MB), quota("recovery", 1 * MB, 1.0 * MB), observed]
    sidecar.told = status(leader=side(5 * MB, 2.5 * MB, quotas=quotas, throttled_topics=["orders"]))
    _open(browser, url, PHONE)
    assert _texts(browser, "#leader figure h3") == [
        "Listed replicas: 2.50 MB/s of 5 MB/s",
        "Recovery: 1.00 MB/s of 1 MB/s",
        f"{HOSTILE}: 3.00 MB/s of 2 MB/s; only observed, 7 times it would have left a partition out",
    ]
    assert _texts(browser, "#leader .source") == ["from http, 1 h 13 min left, 2 more below"]
    lengths = browser.evaluate("[...document.querySelectorAll('#leader .line')].map((line) => line.getBBox().width)")
    assert lengths[1] == pytest.approx(lengths[0] * 2 / 3, rel=0.02)
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE
    columns["quotas"] = {}
    sidecar.told = status(leader=side())
    browser.open(url)
    browser.wait_for(IS_SHOWN)
    assert _texts(browser, "#leader figure h3") == [""]
    assert browser.complaints == []


def test_limited_clients_have_their_rate_against_their_limit(browser: Browser, sidecar: MadeUp, url: str) -> None:
    """Names of clients are as hostile as those of topics."""
    one = limited("connector-consumer-s3-0")
    shared = limited(HOSTILE, 3000.0, per="connector", group="sink:s3", share=0.25, shares_with=["a-1", "a-2"])
    others = [
        {**shared, "shares_with_more": 7, "allowed_records_per_second": 750.0},
        limited("x" * 255, None, connector=None, task=None, kind="other", throttled_ratio=0.0, records_per_second=0.31),
        limited("", 5.5, limits={"byte.rate.limit": 2e6, "record.batch.rate.limit": 5.0, "office.limit": 3.0}),
    ]
    sidecar.told = {**status(), "limits": {"clients": [one, *others], "more": 1234}}
    sidecar.samples.limits = [
        limit_samples(one, waves(1000, 300)),
        limit_samples(others[0], waves(750, 600)),
        limit_samples(others[1], [0.0] * 600),
    ]
    for width, scheme in ((DESK, "light"), (PHONE, "dark")):
        _open(browser, url, width, scheme)
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert [text for contrast, text in browser.contrasts() if contrast < 4.5] == []
    assert _texts(browser, "#limits > p.note") == [
        "1,238 clients seen, 3 of those below kept waiting in the last 30 s."
    ]
    rows = _rows(browser, "#limits")
    assert rows[0] == ["connector-consumer-s3-0s3, sink task 0", "998/s", "1,000/s", "87 %", "-"]
    assert rows[1][2:] == ["3,000/s (25 % here)", "87 %", "a-1, a-2 and 7 more"]
    assert rows[2][1:] == ["0.3/s", "none", "0 %", "-"]
    assert rows[3][:3] == ["(no id)s3, sink task 0", "998/s", "2 MB/s, 5/s batches, office.limit 3"]
    assert _texts(browser, "#limits h3")[:2] == [
        "connector-consumer-s3-0",
        "connector-consumer-s3-*, all tasks of sink:s3",
    ]
    assert _texts(browser, "#limits .readout")[0].startswith("Last minute: 9")
    assert _texts(browser, "#limits .readout")[2] == "Last minute: 0/s on average, 0/s in the fullest second."
    browser.evaluate("document.querySelector('#limits .chart').focus()")
    browser.press("ArrowLeft")
    assert re.fullmatch(r"5 s ago: (9\d\d|1,0\d\d)/s of 1,000/s\.", _texts(browser, "#limits .readout")[0])
    drawn = browser.evaluate("[...document.querySelectorAll('#limits .line')].map((line) => line.getBBox().width)")
    assert drawn[0] == pytest.approx(drawn[1] / 2, rel=0.02)
    assert drawn[2] == 0
    assert browser.evaluate("document.title") == "weir, broker 1"
    assert browser.complaints == []
    del sidecar.told["limits"]
    browser.wait_for("document.querySelector('#limits').hidden")


def test_page_without_limits_has_no_section_of_them(browser: Browser, url: str) -> None:
    _open(browser, url)
    assert browser.evaluate("document.querySelector('#limits').hidden")


def test_chart_leaves_a_gap_where_the_process_stood_still(browser: Browser, sidecar: MadeUp, url: str) -> None:
    columns = samples(waves(5 * MB, 100), 5 * MB)
    columns["at"] = [at - (60 if number < 50 else 0) for number, at in enumerate(columns["at"])]
    sidecar.samples.sides["leader"] = columns
    _open(browser, url)
    path = browser.evaluate("document.querySelector('#leader .area.throttled').getAttribute('d')")
    assert path.count("Z") == 2


def test_chart_reads_its_values_by_pointer_and_by_keyboard(browser: Browser, sidecar: MadeUp, url: str) -> None:
    sidecar.samples.sides["leader"] = samples([0.0] * 300 + [2.5 * MB] * 300, 5 * MB, messages=7)
    _open(browser, url)
    chart = "document.querySelector('#leader .chart')"
    readout = "document.querySelector('#leader .readout').textContent"
    box = browser.evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({chart}.getBoundingClientRect())")
    browser.point(box[0] + 0.25 * box[2], box[1] + 50)
    assert re.fullmatch(
        r"7 min 3\d s ago: 0 B/s of 5 MB/s\. Not throttled: 2\.00 MB/s\. 7 messages behind\.", browser.evaluate(readout)
    )
    browser.point(1, 1)
    assert browser.evaluate(readout).startswith("Last minute: 2.50 MB/s on average")
    browser.evaluate(f"{chart}.focus()")
    browser.press("ArrowLeft")
    assert browser.evaluate(readout).startswith("5 s ago: 2.50 MB/s")
    asked = sidecar.asked
    browser.wait_for(lambda: sidecar.asked >= asked + 2)  # new answers leave the focus and what is read where they are
    assert browser.evaluate(f"document.activeElement === {chart}")
    assert browser.evaluate(readout).startswith("5 s ago: 2.50 MB/s")
    browser.press("Escape")
    assert browser.evaluate(readout).startswith("Last minute")


def test_page_goes_on_with_new_samples(browser: Browser, sidecar: MadeUp, url: str) -> None:
    _open(browser, url)
    asked = sidecar.asked
    sidecar.told = status(leader=side(lag=lag(partitions_behind=3, messages=40)))
    browser.wait_for("document.querySelector('#leader .behind').textContent === '3'")
    assert sidecar.asked > asked
    after = [float(request.rpartition("=")[2]) for request in browser.requests if "after" in request]
    assert after[0] == 0
    assert after[-1] == 700


def test_page_says_that_the_sidecar_is_gone_and_when_it_is_back(browser: Browser, sidecar: MadeUp, url: str) -> None:
    _open(browser, url)
    sidecar.fails = True
    browser.wait_for("document.querySelector('#trouble').textContent.startsWith('No answer from the sidecar for ')")
    assert browser.evaluate("document.body.className") == "lost"
    sidecar.fails = False
    browser.wait_for("document.querySelector('#trouble').hidden")
    assert browser.evaluate("document.body.className") == ""


def test_page_has_the_colours_of_the_report() -> None:
    """A quota is the same orange in both."""

    def colours(package: str) -> list[tuple[str, str]]:
        return re.findall(r"(--\w+): (#\w+);", resources.files(package).joinpath("page.css").read_text())

    here = colours("weir.proxy.admin.page")
    assert len(here) > 20
    assert set(here) <= set(colours("weir.pipeline.page"))


def test_page_loads_nothing_and_keeps_no_state() -> None:
    text = page().decode()
    assert "{{" not in text
    assert re.findall(r"(?:src|href)=\"?(http|//)", text) == []
    assert "innerHTML" not in text
    assert "unsafe" not in headers()["Content-Security-Policy"]
