"""Charts of rates against quotas, one for each broker and side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from weir.pipeline.page.chart import figure, legend, mark
from weir.pipeline.page.contents import Brokers, BrokerSide, Replication
from weir.pipeline.page.markup import Child, Element, behind, element, left_out_note, table
from weir.pipeline.page.texts import counted, round_up
from weir.pipeline.page.timeline import Timeline
from weir.planning.units import show_rate, show_size

_HEIGHT: Final = 120  # pixels
_NAME_HEIGHT: Final = 16
_UNITS: Final = 1000  # the height of a chart in the coordinates of its shapes

_FAR_ABOVE: Final = 4.0
"""A quota this many times above the highest rate is not drawn: it would leave the rates no room."""

Series = Sequence[float | None]


def broker_charts(brokers: Brokers, timeline: Timeline) -> Iterator[Element]:
    """Yield the charts, one broker after the other, and then the table with their figures."""
    yield legend(
        ("throttled", "throttled replicas"),
        ("unthrottled", "other replicas, on top of them: no quota holds them"),
        ("peak", "highest sample of throttled replicas"),
        ("quota", "quota in force, of throttled replicas alone"),
        ("unsampled", "no samples"),
    )
    for broker_id, sides in groupby(brokers.shown, key=lambda side: side.broker_id):
        name = f"Broker {broker_id}"
        yield element(
            "section",
            {"class": "broker"},
            element("h3", None, name),
            element("div", {"class": "pair"}, *(_chart(name, side, timeline) for side in sides)),
        )
    shown = len({side.broker_id for side in brokers.shown})
    yield from left_out_note(shown, brokers.count, "brokers", "with the most bytes")
    yield behind(f"The rates of {counted(shown, 'broker')} as a table", _table(brokers))


def _chart(name: str, of: BrokerSide, timeline: Timeline) -> Element:
    highest = max((*_known(of.throttled.peaks), *_known(_sums(of))), default=0.0)
    quotas = [quota for quota in of.quotas if quota is not None]
    top = 1.08 * max([highest, *(quota for quota in quotas if quota <= _FAR_ABOVE * highest)]) or 1.0
    lines, names = _levels(top)
    # a rate of 0 all the time needs no line along the bottom
    peaks = [peak or None for peak in of.throttled.peaks]
    shapes = element(
        "svg",
        {"viewBox": f"0 0 {timeline.columns.count} {_UNITS}", "preserveAspectRatio": "none", "height": _HEIGHT},
        _shape("area unsampled", _area([None if rate is not None else top for rate in _sums(of)], top)),
        _shape("area unthrottled", _area(_sums(of), top)),
        _shape("area throttled", _area(of.throttled.means, top)),
        _shape("line peak", _line(peaks, top)),
        _shape("line quota", _line([None if quota is None or quota > top else quota for quota in of.quotas], top)),
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
    summary = (
        f"mean: throttled {show_rate(of.throttled.mean)} (highest {show_rate(of.throttled.highest)}),"
        f" others {show_rate(of.unthrottled.mean)}; {quota}"
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


def _levels(top: float) -> tuple[list[Element], list[Element]]:
    """Return one to three lines at round rates, where there is room for their names, and the names."""
    lines, names = [], []
    step = round_up(top / 3)
    level = step
    while (y := _HEIGHT * (1 - level / top)) > _NAME_HEIGHT:
        lines.append(element("line", {"class": "grid", "x1": 0, "x2": "100%", "y1": y, "y2": y}))
        names.append(element("text", {"class": "tick", "x": 2, "y": y - 3}, show_rate(level)))
        level += step
    return lines, names


def _sums(of: BrokerSide) -> list[float | None]:
    return [
        None if throttled is None and others is None else (throttled or 0) + (others or 0)
        for throttled, others in zip(of.throttled.means, of.unthrottled.means, strict=True)
    ]


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


def _line(series: Series, top: float) -> str:
    return " ".join(f"M{start} {_steps(start, run, top)}" for start, run in _runs(series))


def _area(series: Series, top: float) -> str:
    return " ".join(f"M{start} {_UNITS}L{start} {_steps(start, run, top)}V{_UNITS}Z" for start, run in _runs(series))


def _steps(start: int, run: list[float], top: float) -> str:
    """Return the path from the first value's height on; each value is a step as wide as its column."""
    heights = [round(_UNITS * (1 - value / top)) for value in run]
    steps = [f"H{start + number}V{height}" for number, height in enumerate(heights[1:], 1)]
    return f"{heights[0]}{''.join(steps)}H{start + len(run)}"


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
