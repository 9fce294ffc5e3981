# SPDX-License-Identifier: Apache-2.0
"""A chart of what two sinks wrote, one of them held to a rate of records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weir.lab.received import Series


def draw_sinks(path: Path, written: Mapping[str, Series], limit: int) -> None:
    """Draw the records in each sink's file over time, and by second against the limit (records/s), as a PNG at `path`.

    The first sink is the limited one.
    """
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("Agg")
    begin = min(series.span[0] for series in written.values())
    end = max(series.span[1] for series in written.values())
    figure, (totals, rates) = pyplot.subplots(1, 2, figsize=(12, 4))
    colours = {}
    for name, series in written.items():
        kept = [
            (at - begin, total) for at, total in zip(series.times, series.totals, strict=True) if begin <= at <= end
        ]
        (line,) = totals.plot(*zip(*kept, strict=True), label=name)
        colours[name] = line.get_color()
    first, last = next(iter(written.values())).span
    totals.plot(
        [first - begin, last - begin], [0, (last - first) * limit], color="black", linestyle="--", label="the limit"
    )
    totals.set(title="records in each sink's file", xlabel="second", ylabel="records")
    totals.legend(loc="lower right")
    top = 2 * limit
    for name, series in reversed(list(written.items())):  # the limited one is in front
        amounts, offset = series.per_second(), series.span[0] - begin
        starts = [offset + second for second in range(len(amounts))]
        most = max(amounts, default=0.0)
        label = f"{name}, up to {most:,.0f}" if most > top else name
        rates.bar(starts, amounts, width=0.9, align="edge", label=label, color=colours[name])
    rates.axhline(limit, color="black", linestyle="--", label=f"limit {limit:,} records/s")
    rates.set(title="records by second", xlabel="second", ylabel="records", ylim=(0, top))
    rates.legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
