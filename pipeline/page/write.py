# SPDX-License-Identifier: Apache-2.0
"""Puts a page together: one HTML document with its style and script inside, which loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from datetime import tzinfo
from importlib import resources

from weir.pipeline.page.broker_charts import broker_charts
from weir.pipeline.page.contents import Columns, Contents, Coverage
from weir.pipeline.page.gantt import gantt
from weir.pipeline.page.heat_map import heat_map
from weir.pipeline.page.limit_table import limit_table
from weir.pipeline.page.markup import Element, element, html
from weir.pipeline.page.span_tables import accuracy_table, away_table, slow_table
from weir.pipeline.page.texts import counted, show_count, show_ratio, show_seconds
from weir.pipeline.page.timeline import Timeline, show_moment
from weir.pipeline.page.verdict_box import verdict_box
from weir.planning.units import show_size

TITLE = "Replication report"
_NOT_SLOW = "No replica was out of sync in this range."


def page_of(contents: Contents, zone: tzinfo) -> str:
    """Return the page, with times in `zone`."""
    skip = element("a", {"class": "skip", "href": "#main"}, "Skip to the report")
    if contents.columns is None or contents.is_empty:
        parts = _empty(_nothing(contents, zone))
    else:
        parts = _full(contents, Timeline(contents.columns, zone))
    return html(element("html", {"lang": "en"}, _head(), element("body", None, skip, *parts, _script())))


def summary(contents: Contents, zone: tzinfo) -> str:
    """Return one line that says what is on the page."""
    if contents.is_empty or contents.columns is None:
        return _nothing(contents, zone)
    counts = (
        counted(contents.brokers.count, "broker"),
        counted(contents.partitions.count, "partition"),
        counted(contents.accuracy.count, "quota"),
        counted(contents.moves.count, "move"),
    )
    return f"{', '.join(counts)}, {_range(contents.columns, zone)}."


def _head() -> Element:
    return element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _policy()}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("link", {"rel": "icon", "href": "data:,"}),
        element("title", None, TITLE),
        element("style", None, _asset("page.css")),
    )


def _script() -> Element:
    return element("script", None, _asset("page.js"))


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy() -> str:
    """Allow this style and this script, and nothing else: a name in the data can then neither load nor run anything."""
    style, script = (_digest(_asset(name)) for name in ("page.css", "page.js"))
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _empty(sentence: str) -> list[Element]:
    return [
        element("header", None, element("h1", None, TITLE)),
        element("main", {"id": "main", "tabindex": -1}, element("p", {"class": "nothing"}, sentence)),
    ]


def _nothing(contents: Contents, zone: tzinfo) -> str:
    if contents.columns is None:
        return "The tables have no rows."
    return f"Nothing was sampled from {_range(contents.columns, zone)}."


def _range(columns: Columns, zone: tzinfo) -> str:
    return f"{show_moment(columns.since, zone)} to {show_moment(columns.until, zone)}"


def _full(contents: Contents, timeline: Timeline) -> list[Element]:
    columns = timeline.columns
    sections = list(_sections(contents, timeline))
    links = (
        element("li", None, element("a", {"href": f"#{section.attrib['id']}"}, heading))
        for heading, section in sections
    )
    since, until = timeline.time(columns.since), timeline.time(columns.until)
    header = element(
        "header",
        None,
        element("h1", None, TITLE),
        element("p", None, since, " to ", until, f", in columns of {_width(columns.seconds)}"),
        *_about(contents.coverage),
        element("nav", {"aria-label": "Sections"}, element("ul", None, *links)),
    )
    box = None if contents.verdict is None else verdict_box(contents.verdict, timeline.zone)
    main = element("main", {"id": "main", "tabindex": -1}, box, _overview(contents), *(part for _, part in sections))
    return [header, main]


def _width(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else show_seconds(seconds)


def _about(coverage: Coverage) -> Iterator[Element]:
    """Yield a line on what the page was made of, where anything is known of it."""
    facts = [f"Cluster {cluster}" for cluster in coverage.clusters]
    if coverage.made_at is not None:
        facts.append(f"tables built {_stamp(coverage.made_at)}")
    if coverage.until is not None:
        facts.append(f"last sample {_stamp(coverage.until)}")
    for count, what in ((coverage.missing, "missing"), (coverage.quarantined, "quarantined")):
        if count:
            facts.append(f"{counted(count, 'sample')} {what}")
    if facts:
        yield element("p", {"class": "note"}, "; ".join(facts))


def _stamp(utc: str) -> str:
    return utc.replace("T", " ").replace("Z", " UTC")


def _sections(contents: Contents, timeline: Timeline) -> Iterator[tuple[str, Element]]:
    """Yield each section with its heading."""
    of_partitions, by_minute = timeline, ""
    if contents.partition_columns is not None and contents.partition_columns.seconds > timeline.columns.seconds:
        of_partitions = Timeline(contents.partition_columns, timeline.zone)
        by_minute = f" In columns of {show_seconds(of_partitions.columns.seconds)}."
    yield _section(
        "rates",
        "Rates against quotas",
        "By broker, held back longest first, on one scale, each side by itself. A column is the mean of its samples.",
        broker_charts(contents.brokers, timeline) if contents.brokers.count else None,
        "No broker was sampled in this range.",
    )
    yield _section(
        "partitions",
        "Partitions",
        f"Bytes in by time, once for each follower, on the side that saw more of them.{by_minute}",
        heat_map(contents.partitions, of_partitions) if contents.partitions.count else None,
        "No partition was sampled in this range.",
    )
    yield _section(
        "moves",
        "Moves",
        "When a replica was behind until it had caught up, as its own broker's sidecar saw it where there was one.",
        gantt(contents.moves, contents.verdict, timeline) if contents.moves.count and contents.verdict else None,
        "No replica moved in this range.",
    )
    yield _section(
        "accuracy",
        "How exactly quotas were kept",
        "Replicas were held back while partitions were left out; bytes left out are what could still have passed then."
        " The worst windows are the most bytes in whole seconds, over what the quota allows in them; red above 1.04 and"
        " a batch.",
        accuracy_table(contents.accuracy, timeline) if contents.accuracy.count else None,
        "No quota was in force in this range.",
    )
    yield _section(
        "slowest",
        "Slowest replicas",
        "Those more than 30 s behind. Where nothing came for more than 30 s, one was stuck, or a throttle held it.",
        slow_table(contents.slow, timeline) if contents.slow.count else None,
        _NOT_SLOW if not contents.away else f"{_NOT_SLOW[:-1]} as far as is known; some brokers were away.",
    )
    if contents.away:
        yield _section(
            "away",
            "Brokers that were away",
            "Followers without a connection to a leader that they fetched from before. Their replicas fell behind.",
            away_table(contents.away, timeline),
            "",
        )
    if contents.limited.count:
        yield _section(
            "limits",
            "Limited clients",
            "Clients with limits by records ([[limits.client]]), in records/s over all brokers. A client waits for its"
            " limit, at the broker where that was longest.",
            limit_table(contents.limited),
            "",
        )


def _section(name: str, heading: str, about: str, parts: Iterable[Element] | None, nothing: str) -> tuple[str, Element]:
    content = [element("p", {"class": "nothing"}, nothing)]
    if parts is not None:
        content = [element("p", {"class": "note"}, about), *parts]
    return heading, element(
        "section",
        {"id": name, "aria-labelledby": f"{name}-heading"},
        element("h2", {"id": f"{name}-heading"}, heading),
        *content,
    )


def _overview(contents: Contents) -> Element:
    brokers, accuracy, moves, slow = contents.brokers, contents.accuracy, contents.moves, contents.slow
    share = brokers.throttled_size / brokers.size if brokers.size else 0.0
    unfinished = f"{show_count(moves.unfinished)} not seen to catch up" if moves.unfinished else "all caught up"
    figures = (
        ("brokers", show_count(brokers.count), counted(contents.partitions.count, "partition")),
        ("replicated", show_size(brokers.size), f"{share:.0%} of it throttled"),
        ("worst second", show_ratio(accuracy.worst_1s), "of the quota" if accuracy.count else "no quota in force"),
        ("moves", show_count(moves.count), unfinished if moves.count else "none"),
        ("out of sync", show_count(slow.count), f"{show_seconds(slow.most_stuck_seconds)} without bytes at most"),
    )
    return element(
        "dl",
        {"class": "overview"},
        *(
            element("div", None, element("dt", None, name), element("dd", None, value), element("dd", None, about))
            for name, value, about in figures
        ),
    )
