# SPDX-License-Identifier: Apache-2.0
"""The table of limited clients in `weir status`: who is held to which rate, and for how much of the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from weir.cli.output import print_table
from weir.cli.sidecars import Reply, Row
from weir.planning.units import show_rate

COLUMNS: Final = ("broker", "limited client", "records/s", "limit", "waits", "shares with")
_NUMBERS: Final = ("broker", "records/s", "limit", "waits")
_LONGEST: Final = 60  # characters of a client id that are shown
_NONE: Final = "-"


def limited_rows(reply: Reply) -> Iterator[Row]:
    """Yield a row for each limited client that a sidecar shows."""
    state: dict[str, Any] = reply.value
    for client in state.get("limits", {}).get("clients", ()):
        others = len(client["shares_with"]) + client["shares_with_more"]
        yield [
            str(state["broker_id"]),
            _shown(client["client_id"]),
            f"{client['records_per_second']:,.0f}",
            _limits(client),
            f"{client['throttled_ratio']:.0%}",
            f"{others} of {_shown(client['group'])}" if others else _NONE,
        ]


def print_limited(replies: Sequence[Reply], rows: Sequence[Row]) -> None:
    """Print the rows, if there are any, and how many clients are not among them."""
    if rows:
        print_table(COLUMNS, rows, _NUMBERS)
    more = sum(reply.value.get("limits", {}).get("more", 0) for reply in replies if reply.error is None)
    if more:
        print(f"{more:,} more limited clients are not shown: they wait less than these.")


def _limits(client: Mapping[str, Any]) -> str:
    texts = [_limit(key, value) for key, value in client["limits"].items()]
    here = f" ({client['share']:.0%} here)" if texts and client["share"] < 0.995 else ""
    return (", ".join(texts) or "none") + here


def _limit(key: str, value: float) -> str:
    match key:
        case "record.rate.limit":
            return f"{value:,g}"
        case "record.batch.rate.limit":
            return f"{value:,g} batches/s"
        case "byte.rate.limit":
            return show_rate(round(value))
    return f"{key} {value:g}"


def _shown(client_id: str) -> str:
    """Return the beginning of an id: whoever connects chooses it."""
    return client_id[:_LONGEST] + ("…" if len(client_id) > _LONGEST else "") or "(no id)"
