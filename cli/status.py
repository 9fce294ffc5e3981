"""`weir status`: what sidecars are doing now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.output import print_table
from cli.rates import show_rate
from cli.sidecars import AdminOption, ConfigOption, JsonOption, Reply, admin_addresses, as_json, ask_all, finish

_NUMBERS = ("broker", "quota", "rate", "links", "held", "left out", "lag messages", "lag s")
_COLUMNS = ("sidecar", "broker", "side", "quota", "rate", "links", "held", "left out", "lag messages", "lag s", "ready")


def status(admin: AdminOption = None, config: ConfigOption = None, json_wanted: JsonOption = False) -> int:
    """Show quotas, rates, links, partitions left out and lag of one or several sidecars."""
    replies = ask_all(admin_addresses(admin, config), "GET", "/v1/status")
    if json_wanted:
        print(as_json(replies, "status"))
    elif answered := [reply for reply in replies if reply.error is None]:
        print_table(_COLUMNS, (row for reply in answered for row in _rows(reply)), _NUMBERS)
        for reply in answered:
            for reason in reply.value["not_ready"]:
                print(f"{reply.admin} is not ready: {reason}.")
    return finish(replies)


def _rows(reply: Reply) -> Iterator[list[str]]:
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
