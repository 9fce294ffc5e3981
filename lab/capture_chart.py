# SPDX-License-Identifier: Apache-2.0
"""Charts of moves over a link that others use too, and of what was done meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from weir.lab.progress import MEGABYTE
from weir.lab.received import Series

_STEP: Final = 0.5  # seconds of a bar


def draw_phases(
    path: Path, received: Series, phases: Sequence[tuple[str, float, float]], quota: int, link: int
) -> None:
    """Draw bytes/s over time (MB/s), the phases (name, begin, end), the quota and the link, as a PNG at `path`."""
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("Agg")
    first, last = phases[0][1], phases[-1][2]
    count = int((last - first) / _STEP) + 1
    edges = [first + number * _STEP for number in range(count + 1)]
    rates = [(received.total_at(b) - received.total_at(a)) / _STEP / MEGABYTE for a, b in pairwise(edges)]
    figure, axis = pyplot.subplots(figsize=(11, 4.5))
    axis.bar([edge - first for edge in edges[:-1]], rates, width=_STEP * 0.9, align="edge")
    for line, label, style in ((quota, "quota", "--"), (link, "link", ":")):
        axis.axhline(line / MEGABYTE, color="black", linestyle=style, label=f"{label} {line / MEGABYTE:g} MB/s")
    top = max(*rates, link / MEGABYTE) * 1.3
    for name, begin, _ in phases:
        axis.axvline(begin - first, color="grey", linewidth=0.8)
        axis.text(begin - first + 0.1, top * 0.98, name.replace(" ", "\n", 2), fontsize=8, va="top")
    axis.set(xlabel="second of the move", ylabel="MB/s received", ylim=(0, top))
    axis.legend(loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_shared_link(
    path: Path, ways: Mapping[str, tuple[Sequence[float], Sequence[float]]], begins: float, link: int
) -> None:
    """Draw, as a PNG at `path`, a link that a move and clients share, once for each way that it was tried.

    A way has its move's bytes/s and the slowest record's seconds, both for each second. `begins`: the move's second.
    """
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("Agg")
    figure, (rates, delays) = pyplot.subplots(2, 1, figsize=(11, 6), sharex=True)
    for way, (moved, slowest) in ways.items():
        rates.step(range(len(moved)), [rate / MEGABYTE for rate in moved], where="post", label=way)
        delays.step(range(len(slowest)), [seconds * 1000 for seconds in slowest], where="post", label=way)
    rates.axhline(link / MEGABYTE, color="black", linestyle=":", label=f"link {link / MEGABYTE:g} MB/s")
    rates.set(ylabel="MB/s moved", ylim=(0, link / MEGABYTE * 1.1))
    delays.set(xlabel="second", ylabel="ms until a record is acked, the slowest", yscale="log")
    for axis in (rates, delays):
        axis.axvline(begins, color="grey", linewidth=0.8)
        axis.legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
