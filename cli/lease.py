# SPDX-License-Identifier: Apache-2.0
"""The options of a change over HTTP that ends by itself: for how long, who, and why."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.options import option, parse_given
from weir.cli.quantities import parse_duration, show_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """How long a change holds. Without `--for` it holds until the sidecar restarts or loads its file again."""

    for_: str | None = option("--for", "TIME", "How long it holds, as in 2h or 90min; else until a restart or reload.")
    reason: str | None = option("--reason", None, "Why; shown beside it. Needs --for.")
    owner: str | None = option("--owner", None, "Who; by default the user of this shell.")

    def as_plain(self) -> dict[str, Any]:
        """Return `lease` as the admin server takes it, or nothing; CommandError for options that do not fit."""
        if self.for_ is None:
            if self.reason is not None or self.owner is not None:
                raise CommandError("--for is missing: a reason and an owner belong to a change that ends.", WRONG_USAGE)
            return {}
        seconds = parse_given("--for", parse_duration, self.for_)
        owner = _user() if self.owner is None else self.owner
        return {"lease": {"seconds": seconds, "owner": owner, "reason": self.reason or ""}}


def source_in_words(source: str, entry: Mapping[str, Any]) -> str:
    """Return where a setting comes from, as in `http, 1 h left, ann: adding broker 4`. `entry` may have a lease."""
    if "expires_in_seconds" not in entry:
        return source
    said = ": ".join(text for text in (entry.get("owner"), entry.get("reason")) if text)
    left = f"{show_duration(entry['expires_in_seconds'])} left"
    return ", ".join(text for text in (source, left, said) if text)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return ""
