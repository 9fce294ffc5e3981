# SPDX-License-Identifier: Apache-2.0
"""`weir demo`: three real brokers and their sidecars on this machine."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from weir.cli.errors import WRONG_USAGE, CommandError

PACKAGES: Final = ("duckdb", "matplotlib", "pyspark")


def is_offered() -> bool:
    """Whether the list of commands names the demo: not where it cannot run, as in a sidecar's image."""
    return not _absent() and bool(shutil.which("java") or os.environ.get("JAVA_HOME"))


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Move 30 MB in place of 200, in half the time.")] = False,
    capture: Annotated[
        bool, typer.Option("--capture", help="Put sidecars beside running brokers instead (as root, with nft).")
    ] = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="Hold one of two Kafka Connect sinks to 1,000 records/s instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures and promises as JSON.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for charts and the page.")] = Path("out"),
) -> int:
    """Move 200 MB between three real Kafka brokers on this machine, by weir and by Kafka, and check every promise.

    It takes two minutes and Java 17. Kafka's jars are fetched once, into weir's folder in ~/.cache or XDG_CACHE_HOME.
    """
    if capture + connect + (fast or as_json) > 1:
        raise CommandError("--capture and --connect go with no other option but --out.", WRONG_USAGE)
    if absent := _absent():
        raise CommandError(
            f"the demo needs packages that are not installed ({', '.join(absent)}): pip install 'kafka-weir[demo]'."
        )
    from weir.lab import demo as lab

    kind: lab.Kind = "capture" if capture else "connect" if connect else "move"
    return lab.main(kind, out, fast=fast, as_json=as_json)


def _absent() -> list[str]:
    return [package for package in PACKAGES if find_spec(package) is None]
