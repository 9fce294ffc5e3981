# SPDX-License-Identifier: Apache-2.0
"""What a build says of a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date


@dataclass(slots=True)
class DayReport:
    """What became of one day: `rows` by table, `quarantined` lines by reason.

    `missing` counts samples that are missing between others, `partitions` how many partitions all samples tell of.
    `brokers` are those whose samples there are, and `silent` those that only the tables before, or the day before,
    have. `damaged` names files that were read only up to their damage. `lost_hours` had samples in the tables before,
    and have none: then the day `is_refused`, and its tables stay, unless that is wanted.
    """

    day: date
    samples: int = 0
    missing: int = 0
    has_duplicates: bool = False
    partitions: int = 0
    is_refused: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    brokers: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    lost_hours: list[int] = field(default_factory=list)

    def sentence(self) -> str:
        """Return the day as one line for people."""
        silent = [f"nothing came from broker {', '.join(map(str, self.silent))}"] if self.silent else []
        if not (self.samples or self.quarantined or self.damaged or self.is_refused):
            return ", ".join([f"{self.day}: no samples; the tables of this day are empty", *silent])
        parts = [f"{self.samples} samples"]
        if self.is_refused:
            times = ", ".join(f"{hour:02}:00" for hour in self.lost_hours)
            kept = "its tables stay as they were (--allow-empty replaces them)"
            parts.append(f"none is left of the hours from {times}, so {kept}")
        parts += [f"{rows} rows of {table}" for table, rows in self.rows.items()]
        parts += silent
        if self.missing:
            parts.append(f"{self.missing} samples missing")
        if self.has_duplicates:
            parts.append("duplicates left out")
        parts += [f"{lines} lines quarantined ({reason})" for reason, lines in sorted(self.quarantined.items())]
        parts += [f"{path} is damaged and was read in part" for path in self.damaged]
        return f"{self.day}: {', '.join(parts)}"


def nothing_came(reports: Sequence[DayReport]) -> str | None:
    """Return a sentence, without the full stop, on days without any whole sample; None where there are none."""
    days = [str(report.day) for report in reports if not report.samples and not report.is_refused]
    if not days:
        return None
    return (
        f"no whole sample arrived of {', '.join(days)}: sidecars export some at all times, so look at what carries them"
        " to --input (--allow-empty takes it as it is)"
    )
