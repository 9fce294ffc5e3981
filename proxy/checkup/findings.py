# SPDX-License-Identifier: Apache-2.0
"""What a look at something found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `about` names it, as the configuration does where it can.

    - `warn`: it may be meant, or could not be looked into.
    - `fail`: with it the sidecar does not do what the configuration says.

    `sentence` says how it stands and, unless it is ok, what to do; it has no full stop.
    """

    level: Level
    about: str
    sentence: str

    def plain(self) -> dict[str, str]:
        """Return it as plain JSON values."""
        return asdict(self)


def listed(values: Iterable[object]) -> str:
    """Return values as a sentence lists them: `1, 2 and 3`."""
    *most, last = [str(value) for value in values] or ["none"]
    return f"{', '.join(most)} and {last}" if most else last
