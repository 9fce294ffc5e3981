"""`weir demo`: three real brokers and their sidecars on this machine."""

from __future__ import annotations

import importlib

import typer

from cli.errors import CommandError

PASS_ARGUMENTS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The demo reads its own arguments, `--help` among them."""


def demo(context: typer.Context) -> int:
    """Move a topic between real Kafka brokers at the rate that was set, and check every promise."""
    try:
        lab_demo = importlib.import_module("lab.demo")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the demo needs the lab's packages ({error.name} is not installed): pip install 'kafka-weir[lab]'."
        ) from error
    return int(lab_demo.main(list(context.args)))
