"""`weir status`: what sidecars are doing at the moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.output import print_table
from cli.sidecars import (
    AdminOption,
    ConfigOption,
    JsonOption,
    Reply,
    Row,
    admin_addresses,
    as_json,
    ask_all,
    finish,
    rows_of,
)
from planning.units import show_rate

_NUMBERS = ("broker", "quota", "rate", "links", "held", "left out", "lag messages", "lag s")
_COLUMNS = ("sidecar", "broker", "side", "quota", "rate", "links", "held", "left out", "lag messages", "lag s", "ready")


def status(admin: AdminOption = None, config: ConfigOption = None, json_wanted: JsonOption = False) -> int:
    """Show quotas, rates, links, partitions left out and lag of one or several sidecars."""
    replies = ask_all(admin_addresses(admin, config), "GET", "/v1/status")
    if json_wanted:
        print(as_json(replies, "status"))
        return finish(replies)
    rows, replies = rows_of(replies, _rows)
    not_ready, replies = rows_of(replies, _not_ready)
    if rows:
        print_table(_COLUMNS, rows, _NUMBERS)
    for address, reason in not_ready:
        print(f"{address} is not ready: {reason}.")
    return finish(replies)


def _not_ready(reply: Reply) -> Iterator[Row]:
    for reason in reply.value["not_ready"]:
        yield str(reply.admin), str(reason)


def _rows(reply: Reply) -> Iterator[Row]:
    state: dict[str, Any] = reply.value
    for name, side in state["sides"].items():
        yield [
            str(reply.admin),
            str(state["broker_id"]),
            name,
            show_rate(side["quota_bytes_per_second"]),
            show_rate(side["throttled_rate_bytes_per_second"]),
            str(len(side["links"])),
            str(side["held_fetches"]),
            str(side["partitions_left_out"]),
            str(side["lag"]["messages"]),
            f"{side['lag']['max_seconds']:.1f}",
            "yes" if state["ready"] else "no",
        ]
