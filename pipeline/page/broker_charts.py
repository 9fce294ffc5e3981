# SPDX-License-Identifier: Apache-2.0
"""Charts of rates against quotas, one for each broker and side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from weir.pipeline.page.chart import figure, legend, mark
from weir.pipeline.page.contents import BrokerClients, Brokers, BrokerSide, Replication
from weir.pipeline.page.markup import Child, Element, behind, element, left_out_note, table
from weir.pipeline.page.texts import counted, round_up
from weir.pipeline.page.timeline import Timeline
from weir.planning.units import show_rate, show_size

_HEIGHT: Final = 120  # pixels
_CLIENT_HEIGHT: Final = 70
_NAME_HEIGHT: Final = 16
_UNITS: Final = 1000  # the height of a chart in the coordinates of its shapes

_FAR_ABOVE: Final = 4.0
"""A quota this many times above the highest rate is not drawn: it would leave the rates no room."""

Series = Sequence[float | None]


class _Scale(NamedTuple):
    """The highest rate above the line of a chart and below it, in bytes/s. All charts have the same."""

    above: float
    below: float

    def height(self, rate: float) -> float:
        """Return where a rate is, from 0 at the top to 1; one below the line is negative."""
        return (self.above - rate) / (self.above + self.below)


def broker_charts(brokers: Brokers, timeline: Timeline) -> Iterator[Element]:
    """Yield the charts, one broker after the other, and then the table with their figures."""
    scale = _scale(brokers.shown)
    clients = {of.broker_id: of for of in brokers.clients}
    of_clients = _scale_of_clients(brokers.clients)
    told = (("read", "read by clients"), ("written", "written by clients, below the line"))
    yield legend(
        ("throttled", "throttled replicas"),
        ("unthrottled", "other replicas, below the line: no quota holds them"),
        ("peak", "highest sample of throttled replicas"),
        ("quota", "quota in force, of throttled replicas alone"),
        ("unsampled", "no samples"),
        *(told if clients else ()),
    )
    for broker_id, sides in groupby(brokers.shown, key=lambda side: side.broker_id):
        name = f"Broker {broker_id}"
        yield element(
            "section",
            {"class": "broker"},
            element("h3", None, name),
            element(
                "div",
                {"class": "pair"},
                *(_chart(name, side, scale, timeline) for side in sides),
                _client_chart(name, clients[broker_id], of_clients, timeline) if broker_id in clients else None,
            ),
        )
    shown = len({side.broker_id for side in brokers.shown})
    yield from left_out_note(shown, brokers.count, "brokers", "held back longest, or with the most bytes,")
    yield behind(f"The rates of {counted(shown, 'broker')} as a table", _table(brokers))


def _scale(sides: Sequence[BrokerSide]) -> _Scale:
    highest = max((rate for of in sides for rate in _known((*of.throttled.means, *of.throttled.peaks))), default=0.0)
    others = max((rate for of in sides for rate in _known(of.unthrottled.means)), default=0.0)
    bound = _FAR_ABOVE * max(highest, others)
    quotas = [quota for of in sides for quota in of.quotas if quota is not None and quota <= bound]
    above = 1.08 * max(highest, *quotas, 0.0)
    # without anything above the line it would lie at the very top
    return _Scale(max(above, 0.1 * others) or 1.0, 1.08 * others)


def _scale_of_clients(clients: Sequence[BrokerClients]) -> _Scale:
    read = max((rate for of in clients for rate in _known(of.read)), default=0.0)
    written = max((rate for of in clients for rate in _known(of.written)), default=0.0)
    return _Scale(1.08 * max(read, 0.1 * written) or 1.0, 1.08 * written)


def _client_chart(name: str, of: BrokerClients, scale: _Scale, timeline: Timeline) -> Element:
    lines, names = _levels(scale, _CLIENT_HEIGHT)
    below = [None if rate is None else -rate for rate in of.written]
    shapes = element(
        "svg",
        {"viewBox": f"0 0 {timeline.columns.count} {_UNITS}", "preserveAspectRatio": "none", "height": _CLIENT_HEIGHT},
        _shape(
            "area unsampled", _area([scale.above if rate is None else None for rate in of.read], scale, -scale.below)
        ),
        _shape("area written", _area(below, scale)),
        _shape("area read", _area(of.read, scale)),
    )
    marks = (
        mark(
            "column", f"{timeline.show_column(number)}: {text}", number / count, (number + 1) / count, 0, _CLIENT_HEIGHT
        )
        for count in (timeline.columns.count,)
        for number, text in enumerate(map(_client_text, of.read, of.written))
    )
    chart = element(
        "svg",
        {"class": "marks plot", "width": "100%", "height": _CLIENT_HEIGHT, "aria-hidden": "true"},
        *timeline.grid(_CLIENT_HEIGHT),
        *lines,
        shapes,
        *names,
        *marks,
    )
    known = [[*_known(series)] for series in (of.read, of.written)]
    means = [sum(rates) / len(rates) for rates in known]
    summary = f"mean: read {show_rate(means[0])} (highest {show_rate(max(known[0]))}), written {show_rate(means[1])}"
    return figure(element("h4", None, "Clients"), f"{name}, clients", summary, chart, timeline.axis())


def _client_text(read: float | None, written: float | None) -> str:
    return "no samples" if read is None else f"clients read {show_rate(read)} and wrote {show_rate(written or 0)}"


def _chart(name: str, of: BrokerSide, scale: _Scale, timeline: Timeline) -> Element:
    quotas = [quota for quota in of.quotas if quota is not None]
    top = scale.above
    lines, names = _levels(scale, _HEIGHT)
    # a rate of 0 all the time needs no line along the bottom
    peaks = [peak or None for peak in of.throttled.peaks]
    is_known = [a is not None or b is not None for a, b in zip(of.throttled.means, of.unthrottled.means, strict=True)]
    others = [None if rate is None else -rate for rate in of.unthrottled.means]
    shapes = element(
        "svg",
        {"viewBox": f"0 0 {timeline.columns.count} {_UNITS}", "preserveAspectRatio": "none", "height": _HEIGHT},
        _shape("area unsampled", _area([None if known else top for known in is_known], scale, -scale.below)),
        _shape("area unthrottled", _area(others, scale)),
        _shape("area throttled", _area(of.throttled.means, scale)),
        _shape("line peak", _line(peaks, scale)),
        _shape("line quota", _line([None if quota is None or quota > top else quota for quota in of.quotas], scale)),
    )
    chart = element(
        "svg",
        {"class": "marks plot", "width": "100%", "height": _HEIGHT, "aria-hidden": "true"},
        *timeline.grid(_HEIGHT),
        *lines,
        shapes,
        *names,
        *_marks(of, timeline),
    )
    label = f"{name}, {of.side} side"
    quota = f"quota {_range_of(quotas)}" if quotas else "no quota"
    if any(rate > top for rate in quotas):
        quota += ", above this chart" if min(quotas) > top else ", partly above this chart"
    mean = f"throttled {show_rate(of.throttled.mean)}"
    if quotas:
        mean = f"throttled {show_rate(_mean_under_quota(of))} while a quota was in force"
    summary = (
        f"mean: {mean} (highest {show_rate(of.throttled.highest)}), others {show_rate(of.unthrottled.mean)}; {quota}"
    )
    return figure(element("h4", None, f"{of.side.capitalize()} side"), label, summary, chart, timeline.axis())


def _marks(of: BrokerSide, timeline: Timeline) -> Iterator[Element]:
    count = timeline.columns.count
    for number in range(count):
        throttled, others = of.throttled.means[number], of.unthrottled.means[number]
        if throttled is None and others is None:
            rates = "no samples"
        else:
            peak = of.throttled.peaks[number]
            rates = f"throttled {show_rate(throttled or 0)} (highest {show_rate(peak or 0)})"
            rates = f"{rates}, others {show_rate(others or 0)}"
        quota = of.quotas[number]
        title = f"{timeline.show_column(number)}: {rates}{'' if quota is None else f', quota {show_rate(quota)}'}"
        yield mark("column", title, number / count, (number + 1) / count, 0, _HEIGHT)


def _mean_under_quota(of: BrokerSide) -> float:
    """Return the mean rate of throttled replicas over the columns in which a quota was in force."""
    both = zip(of.throttled.means, of.quotas, strict=True)
    rates = [rate for rate, quota in both if rate is not None and quota is not None]
    return sum(rates) / len(rates) if rates else 0.0


def _levels(scale: _Scale, height: int) -> tuple[list[Element], list[Element]]:
    """Return the line of 0, and those at round rates where there is room for their names, and the names."""
    rates = [0.0]
    step = round_up(scale.above / 3)
    if height * scale.height(step) <= _NAME_HEIGHT:
        step = round_up(scale.above / 6)
    while height * scale.height(rates[-1] + step) > _NAME_HEIGHT:
        rates.append(rates[-1] + step)
    lines, names = [], []
    for rate in rates:
        y = height * scale.height(rate)
        lines.append(element("line", {"class": "grid" if rate else "zero", "x1": 0, "x2": "100%", "y1": y, "y2": y}))
        if rate:
            names.append(element("text", {"class": "tick", "x": 2, "y": y - 3}, show_rate(rate)))
    return lines, names


def _known(series: Series) -> Iterator[float]:
    return (value for value in series if value is not None)


def _runs(series: Series) -> Iterator[tuple[int, list[float]]]:
    """Yield each run of values without a gap, with the number of its first column."""
    run: list[float] = []
    for number, value in enumerate([*series, None]):
        if value is not None:
            run.append(value)
        elif run:
            yield number - len(run), run
            run = []


def _line(series: Series, scale: _Scale) -> str:
    return " ".join(f"M{start} {_steps(start, run, scale)}" for start, run in _runs(series))


def _area(series: Series, scale: _Scale, base: float = 0.0) -> str:
    """Return the path around all between the rates and `base`."""
    zero = _unit(base, scale)
    return " ".join(f"M{start} {zero}L{start} {_steps(start, run, scale)}V{zero}Z" for start, run in _runs(series))


def _steps(start: int, run: list[float], scale: _Scale) -> str:
    """Return the path from the first value's height on; each value is a step as wide as its column."""
    heights = [_unit(value, scale) for value in run]
    steps = [f"H{start + number}V{height}" for number, height in enumerate(heights[1:], 1)]
    return f"{heights[0]}{''.join(steps)}H{start + len(run)}"


def _unit(rate: float, scale: _Scale) -> int:
    return round(_UNITS * scale.height(rate))


def _shape(kind: str, path: str) -> Element | None:
    return element("path", {"class": kind, "d": path}) if path else None


def _range_of(quotas: Sequence[int]) -> str:
    least, most = min(quotas), max(quotas)
    return show_rate(least) if least == most else f"{show_rate(least)} to {show_rate(most)}"


def _table(brokers: Brokers) -> Element:
    columns = (
        ("broker", False),
        ("side", False),
        ("replicas", False),
        ("bytes", True),
        ("mean", True),
        ("highest sample", True),
        ("quota", True),
    )
    rows = [row for side in brokers.shown for row in _rows(side)]
    return table(columns, rows, "Rates by broker")


def _rows(of: BrokerSide) -> Iterator[tuple[Child, ...]]:
    quotas = [quota for quota in of.quotas if quota is not None]
    kinds: tuple[tuple[str, Replication, str], ...] = (
        ("throttled", of.throttled, _range_of(quotas) if quotas else "none"),
        ("others", of.unthrottled, "-"),
    )
    for kind, rates, quota in kinds:
        rate = show_rate(rates.mean), show_rate(rates.highest)
        yield str(of.broker_id), of.side, kind, show_size(rates.size), *rate, quota
