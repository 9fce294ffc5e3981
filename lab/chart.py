# SPDX-License-Identifier: Apache-2.0
"""A chart of received bytes by second against the quota."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weir.lab.received import Series

MEGABYTE = 1_000_000


def draw_rates(path: Path, moves: Mapping[str, Series], quota: int) -> None:
    """Draw each move's bytes by second (MB) and the quota (bytes/s, as a line), as a PNG at `path`."""
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("Agg")
    figure, axes = pyplot.subplots(1, len(moves), figsize=(6 * len(moves), 4), sharey=True, squeeze=False)
    for axis, (name, series) in zip(axes[0], moves.items(), strict=True):
        amounts = [amount / MEGABYTE for amount in series.per_second()]
        worst, _ = series.worst_window()
        axis.bar(range(len(amounts)), amounts, width=0.9)
        axis.axhline(quota / MEGABYTE, color="black", linestyle="--", label=f"quota {quota / MEGABYTE:g} MB/s")
        axis.set_title(f"{name}: mean {series.mean_rate() / quota:.2f}, worst second {worst / quota:.2f} x quota")
        axis.set(xlabel="second of the move", ylabel="MB received")
    figure.tight_layout(rect=(0, 0, 1, 0.93))  # room for the legend above the bars
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
