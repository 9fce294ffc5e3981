"""`weir demo`: three real brokers and their sidecars on this machine."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

from weir.cli.errors import CommandError

_PROJECT = Path(__file__).resolve().parents[1]

PASS_ARGUMENTS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The demo reads its own arguments, `--help` among them."""


def demo(context: typer.Context) -> int:
    """Move a topic between real Kafka brokers at the rate that was set, and check every promise."""
    if not (_PROJECT / "lab" / "demo.py").is_file():
        raise CommandError("the demo is no part of the package: run `make demo` in a checkout of the project.")
    if str(_PROJECT) not in sys.path:
        sys.path.append(str(_PROJECT))
    try:
        lab_demo = importlib.import_module("weir.lab.demo")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the demo needs the lab's packages ({error.name} is not installed): run `make demo`."
        ) from error
    return int(lab_demo.main(list(context.args)))
