"""What a build says of a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from weir.pipeline.hours import ALL_HOURS


@dataclass(slots=True)
class DayReport:
    """What became of one day, or of some `hours` of it: `rows` by table, `quarantined` lines by reason.

    `missing` counts samples that are missing between others, `partitions` how many partitions all samples tell of.
    `brokers` are those whose samples there are, and `silent` those that only others of the day, or the day before, are
    of. `damaged` names files that were read only up to their damage. The day, or an hour, `is_refused` where tables of
    samples would have been replaced by empty ones: they stay. Of tables that are made of the whole day, `rows` are all.
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
    hours: list[int] = field(default_factory=lambda: sorted(ALL_HOURS))
    refused_hours: list[int] = field(default_factory=list)

    def sentence(self) -> str:
        """Return the day as one line for people."""
        name = f"{self.day}"
        if len(self.hours) < len(ALL_HOURS):
            name += f" {self.hours[0]:02}:00 to {self.hours[-1] + 1:02}:00"
        silent = [f"nothing came from broker {', '.join(map(str, self.silent))}"] if self.silent else []
        if not (self.samples or self.quarantined or self.damaged or self.is_refused):
            when = "day" if " " not in name else "time"
            return ", ".join([f"{name}: no samples; the tables of this {when} are empty", *silent])
        kept = "tables stay as they were (--allow-empty replaces them)"
        parts = [f"{self.samples} samples"]
        if self.is_refused and not self.samples:
            parts = [f"no whole sample; its {kept}"]
        elif self.is_refused:
            times = ", ".join(f"{hour:02}:00" for hour in self.refused_hours)
            parts.append(f"no whole sample from {times} on for an hour, whose {kept}")
        parts += [f"{rows} rows of {table}" for table, rows in self.rows.items()]
        parts += silent
        if self.missing:
            parts.append(f"{self.missing} samples missing")
        if self.has_duplicates:
            parts.append("duplicates left out")
        parts += [f"{lines} lines quarantined ({reason})" for reason, lines in sorted(self.quarantined.items())]
        parts += [f"{path} is damaged and was read in part" for path in self.damaged]
        return f"{name}: {', '.join(parts)}"


def nothing_came(reports: Sequence[DayReport]) -> str | None:
    """Return a sentence, without the full stop, on days without any whole sample; None where there are none."""
    days = [str(report.day) for report in reports if not report.samples and not report.is_refused]
    if not days:
        return None
    return (
        f"no whole sample arrived of {', '.join(days)}: sidecars export some at all times, so look at what carries them"
        " to --input (--allow-empty takes it as it is)"
    )
