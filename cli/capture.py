# SPDX-License-Identifier: Apache-2.0
"""`weir capture show|remove|pause|resume`: the rules of the kernel that lead connections through the sidecar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import typer

from weir.cli import configured
from weir.cli.errors import DONE, WRONG_USAGE, CommandError
from weir.cli.fleet import Where, ask_sidecars
from weir.cli.lease import LeaseOptions
from weir.cli.options import with_options
from weir.cli.output import print_table
from weir.cli.quantities import show_duration
from weir.cli.run import ConfigFile
from weir.cli.sidecars import JsonOption, Reply, Row, as_json, finish, rows_of

app = typer.Typer(help="Take sidecars out of the path and put them back, show a capture's rules, clean up after one.")

_SHOWN_PORTS = {"leader": 19093, "follower": 19092}


@app.command("show")
def show(config: ConfigFile) -> int:
    """Print the rules that `weir run` would set, as `nft -f` reads them. Nothing is changed.

    The sidecar chooses its ports when it starts, and adds the brokers' addresses when the cluster has told them.
    """
    from weir.proxy.capture.rules import CaptureRules

    loaded = configured.load(config)
    capture = loaded.capture
    if capture is None:
        raise CommandError(f"{config}: has no [capture], so nothing is captured.", WRONG_USAGE)
    ports = {side: {4: port, 6: port} for side, port in _SHOWN_PORTS.items() if side in capture.sides}
    rules = CaptureRules(
        loaded.broker_id,
        capture.port,
        ports.get("leader", {}),
        ports.get("follower", {}),
        capture.from_ == "anyone",
        capture.user,
    )
    print(rules.create())
    print(f"# while a sidecar lives{' and a throttle is in force' if capture.when == 'throttled' else ''}:")
    print(rules.stay_alive())
    return DONE


@app.command("remove")
def remove(
    broker_id: Annotated[int | None, typer.Option("--broker-id", help="Only this broker's rules.")] = None,
) -> int:
    """Remove what captures have left in this network namespace. Rules of a sidecar that runs belong to it, and stay."""
    from weir.proxy.capture.nftables import Nftables, NftError
    from weir.proxy.capture.rules import TABLE_NAME, table_names

    try:
        packet_filter = Nftables()
        listed = packet_filter.run("list tables inet")
    except NftError as error:
        raise CommandError(f"the kernel's packet filter cannot be asked: {error}.") from error
    found = re.findall(rf"^table inet ({TABLE_NAME})\b", listed, re.MULTILINE)
    if broker_id is not None:
        found = [name for name in found if name in table_names(broker_id)]
    held = []
    for name in found:
        try:
            packet_filter.run(f"delete table inet {name}")
        except NftError:
            held.append(name)
        else:
            print(f"{name} removed.")
    if held:
        raise CommandError(f"{', '.join(held)}: a sidecar that runs holds it; stop that sidecar, and it is gone.")
    if not found:
        print("Nothing to remove.")
    return DONE


def pause(where: Where, lease: LeaseOptions, json_wanted: JsonOption = False) -> int:
    """Take sidecars that capture out of the path: connections pass beside them, unthrottled, and none is lost.

    It holds until `weir capture resume`, until a sidecar restarts, or for as long as --for says.
    """
    return _posted(where, "pause", lease.as_plain(), json_wanted)


def resume(where: Where, json_wanted: JsonOption = False) -> int:
    """Put sidecars back into the path after `weir capture pause`."""
    return _posted(where, "resume", {}, json_wanted)


def _posted(where: Where, what: str, body: object, json_wanted: bool) -> int:
    replies = ask_sidecars(where, "POST", f"/v1/capture/{what}", body)
    if json_wanted:
        print(as_json(replies, "capture"))
        return finish(replies)
    rows, replies = rows_of(replies, _paused)
    if rows:
        print_table(("sidecar", "capture"), rows)
    return finish(replies)


def _paused(reply: Reply) -> Iterator[Row]:
    told = reply.value
    left = f", {show_duration(told['expires_in_seconds'])} left" if "expires_in_seconds" in told else ""
    yield str(reply.admin), f"paused{left}" if told["paused"] else "not paused"


app.command("pause")(with_options(pause))
app.command("resume")(with_options(resume))
