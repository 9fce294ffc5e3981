# SPDX-License-Identifier: Apache-2.0
"""Bytes and rates as people read them, in decimal units."""

from __future__ import annotations


def show_rate(rate: float | None) -> str:
    """Show bytes/s: `5 MB/s`; None is `none`."""
    return "none" if rate is None else f"{show_size(rate)}/s"


def show_rough_rate(rate: float) -> str:
    """Show bytes/s to three digits, as of what was measured: `4.98 MB/s`."""
    return show_rate(float(f"{rate:.3g}"))


def show_size(size: float) -> str:
    """Show bytes: `2 TB`."""
    for power, prefix in ((6, "E"), (5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if size >= 1000**power:
            return f"{size / 1000**power:.4g} {prefix}B"
    return f"{size:.4g} B"
