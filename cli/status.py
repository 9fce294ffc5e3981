# SPDX-License-Identifier: Apache-2.0
"""`weir status`: what sidecars are doing at the moment, and with `--bootstrap-server` a whole cluster's."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli import fleet_status, many, not_throttled, troubles
from weir.cli.errors import CommandError
from weir.cli.fleet import Where, ask_sidecars, cluster_of, sidecars
from weir.cli.limited_status import limited_rows, print_limited
from weir.cli.output import WIDTH, print_table
from weir.cli.sidecars import (
    JsonOption,
    Reply,
    Row,
    as_json,
    ask_all,
    finish,
    rows_of,
    with_outcomes,
)
from weir.planning.units import show_rate

if TYPE_CHECKING:
    from weir.control.cluster_admin import ClusterAdmin

_NUMBERS = ("broker", "quota", "rate", "links", "held", "left out", "lag messages", "lag s")
_COLUMNS = ("sidecar", "broker", "side", "quota", "rate", "links", "held", "left out", "lag messages", "lag s", "ready")

WATCH_SECONDS = 2.0

_IDLE_SECONDS = 30  # after which it is said that nobody is connected: brokers that restart are back by then

WatchOption = Annotated[bool, typer.Option("--watch", help="Ask again every 2 s, until Ctrl-C.")]


def status(
    where: Where,
    watch: WatchOption = False,
    json_wanted: JsonOption = False,
) -> int:
    """Show what sidecars hold back, limited clients too; with a cluster its moves and throttles."""
    if where.bootstrap_server is None:
        return _repeated(lambda: _sidecars_status(where, json_wanted, watch), watch)
    with cluster_of(where.bootstrap_server, where.command_config) as cluster:
        return _repeated(lambda: _fleet_status(where, cluster, json_wanted, watch), watch)


def _repeated(show: Callable[[], int], watch: bool) -> int:
    if not watch:
        return show()
    while True:
        if sys.stdout is not None and sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")
        try:
            show()
        except CommandError as error:  # a sidecar, or the cluster, may answer the next time
            print(error.sentence)
        print(flush=True)
        time.sleep(WATCH_SECONDS)


def _sidecars_status(where: Where, json_wanted: bool, watch: bool) -> int:
    replies = ask_sidecars(where, "GET", "/v1/status")
    if json_wanted:
        print(as_json(replies, "status", indent=None if watch else 2))
        return finish(replies)
    rows, replies = rows_of(replies, _rows)
    not_ready, replies = rows_of(replies, _not_ready)
    routes, replies = rows_of(replies, _routes)
    limited, replies = rows_of(replies, limited_rows)
    if rows:
        print_table(_COLUMNS, rows, _NUMBERS)
    print_limited(replies, limited)
    for address, reason in not_ready:
        print(f"{address} is not ready: {reason}.")
    for address, sentence in routes:
        print(f"{address}: {sentence}.")
    for sentence in (*troubles.sentences(replies), *not_throttled.sentences(replies)):
        print(sentence)
    return finish(replies)


def _fleet_status(where: Where, cluster: ClusterAdmin, json_wanted: bool, watch: bool) -> int:
    from weir.control.fleet import cluster_state

    found = sidecars(where, cluster)
    replies = ask_all(list(found), "GET", "/v1/status")
    _, replies = rows_of(replies, lambda reply: fleet_status.rows_of_reply(reply, None))  # checks their form
    replies = [fleet_status.of_broker(reply, found[reply.admin]) for reply in replies]
    limited, replies = rows_of(replies, limited_rows)
    routes, replies = rows_of(replies, _routes)
    state = cluster_state(cluster)
    stuck = state.stuck_moves(fleet_status.not_following(replies))
    why_not_stale = state.why_not_stale(fleet_status.none_behind_seconds(replies))
    if json_wanted:
        plain = {
            "sidecars": with_outcomes(replies, "status"),
            "cluster": fleet_status.as_plain(state, stuck, why_not_stale),
        }
        print(json.dumps(plain, indent=None if watch else 2))
        return finish(replies)
    if len(replies) > many.FEW:
        _print_many(replies, len(state.moves))
    else:
        rows = [row for reply in replies for row in fleet_status.rows_of_reply(reply, found[reply.admin])]
        print_table(fleet_status.COLUMNS, sorted(rows, key=_by_broker), fleet_status.NUMBERS)
    print_limited(replies, limited)
    for address, sentence in routes:
        print(f"{address}: {sentence}.")
    passing, of_cluster = not_throttled.sentences(replies), fleet_status.sentences(state, stuck, why_not_stale)
    all_troubles = [*troubles.sentences(replies), *fleet_status.held_up(replies), *passing]
    for sentence in (*(many.together(all_troubles) if len(replies) > many.FEW else all_troubles), *of_cluster):
        print(sentence)
    return finish(replies)


def _print_many(replies: list[Reply], moves: int) -> None:
    print(many.summary(replies, moves))
    rows, more = many.folded(replies)
    if rows:
        print_table(many.COLUMNS, rows, many.NUMBERS, WIDTH)
    if more:
        print(f"{more} more are behind by less: --json has them.")
    for sentence in many.versions(replies):
        print(sentence)


def _by_broker(row: Row) -> tuple[int, str]:
    return int(row[0]) if row[0].isdecimal() else sys.maxsize, row[1]


def _not_ready(reply: Reply) -> Iterator[Row]:
    for reason in fleet_status.without_troubles(reply.value):
        yield str(reply.admin), reason


def _routes(reply: Reply) -> Iterator[Row]:
    """Yield a sentence for each route whose upstream is down, or on which nobody is connected for long."""
    for route in reply.value.get("routes", ()):
        seconds, failure = route.get("no_link_for_seconds", 0), route.get("upstream_failure")
        if failure is None and seconds < _IDLE_SECONDS:
            continue
        peer = f", peer {route['peer']}" if "peer" in route else ""
        way = f"the route {route['listen']} -> {route['upstream']}{peer}"
        if failure is not None:
            yield str(reply.admin), f"{failure} ({way})"
        else:
            yield str(reply.admin), f"no link is open on {way}, for {seconds:.0f} s: nothing comes this way"


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
