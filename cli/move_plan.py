# SPDX-License-Identifier: Apache-2.0
"""The plan that a command of `weir move` works on: its options, its file, and what is kept beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from weir.cli.cluster import ClusterOptions
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.options import option
from weir.control.move_journal import JournalFile
from weir.planning.reassignment_json import InvalidPlan, ReassignmentPlan, parse_reassignment

if TYPE_CHECKING:
    from weir.control.move_admin import MoveAdmin

_T = TypeVar("_T")

RATE_EXAMPLES = "as in 5000000, 500k, 5MB or 5MiB"

ThrottleOption = Annotated[
    str | None, typer.Option("--throttle", metavar="RATE", help=f"Bytes/s of each broker's moves, {RATE_EXAMPLES}.")
]
PreserveOption = Annotated[
    bool, typer.Option("--preserve-throttles", help="Leave the throttle of brokers and topics as it is.")
]
TimeoutOption = Annotated[
    int, typer.Option("--timeout", metavar="MS", min=0, help="How long to try to begin moves between log directories.")
]
WatchOption = Annotated[bool, typer.Option("--watch", help="Show progress until the move has ended.")]


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what is kept beside its file, and how to connect to the cluster that it is for."""

    plan: ReassignmentPlan
    path: Path
    file: JournalFile
    connect: Callable[[], MoveAdmin]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """A plan, and the cluster that it is for."""

    plan_file: Path = option("--reassignment-json-file", "FILE", "The plan, as `generate` writes it.", MISSING)
    cluster: ClusterOptions

    def read(self) -> Planned:
        """Read the plan, and nothing of the cluster yet. CommandError where the options are wrong."""
        plan = read_file("--reassignment-json-file", self.plan_file, parse_reassignment)
        return Planned(plan, self.plan_file, JournalFile(self.plan_file, plan.id), self.cluster.connector())


def read_file(name: str, path: Path, parse: Callable[[str], _T]) -> _T:
    """Read the file that the option `name` names. CommandError says what is wrong with it, and where."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CommandError(f"{name}: {path} cannot be read: {error.strerror or error}.", WRONG_USAGE) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{name}: {path} is no text in UTF-8.", WRONG_USAGE) from error
    except InvalidPlan as error:
        raise CommandError(f"{path}: {error}.", WRONG_USAGE) from error
