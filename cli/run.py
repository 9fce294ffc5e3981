"""`weir run` and `weir check`. What only one of them needs is imported where it is used: the sidecar stays small."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import DONE, WRONG_USAGE, CommandError
from cli.version import __version__

if TYPE_CHECKING:
    from proxy.config import Config

ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help="The configuration file (TOML).")]


def run(config: ConfigFile) -> int:
    """Run the sidecar until SIGTERM or SIGINT; SIGHUP reloads the file."""
    from proxy.server import ListenError, run_sidecar

    try:
        return run_sidecar(_load(config), config, __version__)
    except ListenError as error:
        raise CommandError(f"{error}.") from error


def check(
    config: ConfigFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check a configuration file: its keys and values, and that no route loops."""
    loaded = _load(config)
    notes = _notes(loaded)
    if as_json:
        import json

        print(json.dumps({"file": str(config), "valid": True, "broker_id": loaded.broker_id, "notes": notes}))
        return DONE
    print(f"{config}: valid, for broker {loaded.broker_id}.")
    for ingress in loaded.ingress:
        print(f"  ingress  {ingress.listen} -> {ingress.upstream}")
    for egress in loaded.egress:
        print(f"  egress   {egress.listen} -> {egress.upstream} (peer {egress.peer})")
    print(f"  admin    {loaded.admin.listen}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return DONE


def _load(path: Path) -> Config:
    from proxy.config import ConfigError, load_config

    try:
        return load_config(path)
    except ConfigError as error:
        raise CommandError(f"{error}.", WRONG_USAGE) from error


def _notes(config: Config) -> list[str]:
    """Say what is allowed but may not be meant: a rate that throttles nothing, and lists without a rate."""
    from proxy.config import SIDES, throttle_settings

    notes = []
    for side in SIDES:
        settings = throttle_settings(config, config.throttle, side)
        own = [
            topic
            for topic, listed in settings.replicas.items()
            if listed.partitions_of(config.broker_id) != frozenset()
        ]
        if settings.rate is not None and not own:
            notes.append(
                f"{side}.replication.throttled.rate is set, but no topic lists a throttled replica on"
                f" broker {config.broker_id}: nothing is throttled on the {side} side."
            )
        elif own and settings.rate is None:
            notes.append(
                f"{side}.replication.throttled.replicas are listed, but {side}.replication.throttled.rate is not set:"
                f" nothing is throttled on the {side} side."
            )
    return notes
