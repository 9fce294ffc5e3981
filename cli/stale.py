# SPDX-License-Identifier: Apache-2.0
"""`weir throttle clear --stale`: removes what moves have left behind in Kafka's own configurations."""

from __future__ import annotations

import json

from weir.cli.errors import CommandError
from weir.cli.fleet import Where, cluster_of, shown, sidecars
from weir.cli.fleet_status import none_behind_seconds, rows_of_reply
from weir.cli.sidecars import ask_all, finish, rows_of
from weir.planning.move_throttle import ConfigChange


def clear_stale(where: Where, bootstrap: str, json_wanted: bool) -> int:
    """Clear the settings that are stale, one by one and nothing else; CommandError where they may still be needed."""
    from weir.control.fleet import cluster_state

    with cluster_of(bootstrap, where.command_config) as cluster:
        replies = ask_all(list(sidecars(where, cluster)), "GET", "/v1/status")
        _, replies = rows_of(replies, lambda reply: rows_of_reply(reply, None))  # checks their form
        state = cluster_state(cluster)
        settings = state.clearable()
        why_not = state.why_not_stale(none_behind_seconds(replies))
        if settings and why_not is not None:
            errors = "".join(f"; {reply.error}" for reply in replies if reply.error is not None)
            raise CommandError(f"nothing is cleared, as {why_not}{errors}.")
        changes = [ConfigChange(setting.kind, setting.name, setting.setting, "delete") for setting in settings]
        refused = cluster.change_configs(changes)
        settings = tuple(setting for setting in settings if f"{setting.kind} {setting.name}" not in refused)
    if json_wanted:
        print(json.dumps({"cleared": [setting._asdict() for setting in settings]}, indent=2))
    else:
        for setting in settings:
            print(f"Cleared {shown(setting)} = {setting.value}")
        if not changes:
            print("Nothing is stale: Kafka's own configurations have no throttle.")
    if refused:
        raise CommandError(f"the cluster refused: {'; '.join(f'{what}, {why}' for what, why in refused.items())}.")
    return finish(replies)
