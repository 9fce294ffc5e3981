"""What the commands of `weir move` share: their options, connections to the cluster, and files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.planning.assignment import Brokers, Partition
from weir.planning.reassignment_json import InvalidPlan, ReassignmentPlan, format_reassignment, parse_reassignment

if TYPE_CHECKING:
    from weir.control.move_admin import MoveAdmin

_T = TypeVar("_T")

BootstrapOption = Annotated[
    str, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="Brokers to begin with, separated by commas.")
]
CommandConfigOption = Annotated[
    Path | None,
    typer.Option("--command-config", metavar="FILE", help="Client properties, such as security.protocol."),
]
PlanOption = Annotated[
    Path, typer.Option("--reassignment-json-file", metavar="FILE", help="The plan, as `generate` writes it.")
]
PreserveOption = Annotated[
    bool, typer.Option("--preserve-throttles", help="Leave the throttle of brokers and topics as it is.")
]


@contextlib.contextmanager
def told_errors() -> Iterator[None]:
    """Within the block, turn errors of the cluster and of moves into CommandErrors."""
    from weir.control.errors import ControlError, MoveError
    from weir.planning.proposals import ImpossibleProposal

    try:
        yield
    except (ControlError, MoveError, ImpossibleProposal) as error:
        raise CommandError(f"{str(error).removesuffix('.')}.") from error


def connector(
    bootstrap_server: str, command_config: Path | None, timeout_seconds: float = 30
) -> Callable[[], MoveAdmin]:
    """Return a function that connects to the cluster. CommandError where the options are wrong."""
    try:
        from weir.access.client_properties import PropertiesError, read_properties
        from weir.access.tls_contexts import properties_context
        from weir.control.move_admin import MoveAdmin
    except ModuleNotFoundError as error:
        raise CommandError(
            f"a package is not installed ({error.name}): pip install kafka-python, for commands that act on a cluster."
        ) from error
    # What the client has to say of a connection is in the error that it raises, too.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    servers = [server.strip() for server in bootstrap_server.split(",")]
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()):
            raise CommandError(f"--bootstrap-server: {server!r} is no address: give it as in kafka1:9092.", WRONG_USAGE)
    options: Mapping[str, object] = {}
    if command_config is not None:
        try:
            options = read_properties(command_config).options
            if str(options.get("security_protocol", "")).endswith("SSL"):
                options = {**options, "ssl_context": properties_context(options)}
        except PropertiesError as error:
            raise CommandError(f"--command-config: {error}.", WRONG_USAGE) from error
    return lambda: MoveAdmin(servers, timeout_seconds=timeout_seconds, client_options=options)


def read_file(option: str, path: Path, parse: Callable[[str], _T]) -> _T:
    """Read a plan or a list of topics. CommandError says what is wrong with it, and where."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CommandError(f"{option}: {path} cannot be read: {error.strerror or error}.", WRONG_USAGE) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{option}: {path} is no text in UTF-8.", WRONG_USAGE) from error
    except InvalidPlan as error:
        raise CommandError(f"{path}: {error}.", WRONG_USAGE) from error


def read_plan(path: Path) -> ReassignmentPlan:
    """Read the file that `--reassignment-json-file` names."""
    return read_file("--reassignment-json-file", path, parse_reassignment)


def rollback_path(plan_file: Path) -> Path:
    """Return the file that the way back from a plan is kept in."""
    return plan_file.with_name(f"{plan_file.stem}.rollback.json")


def read_rollback(plan_file: Path) -> Mapping[Partition, Brokers]:
    """Return the replicas before a plan; empty where nothing tells them."""
    with contextlib.suppress(OSError, UnicodeDecodeError, InvalidPlan):
        return parse_reassignment(rollback_path(plan_file).read_text(encoding="utf-8")).brokers
    return {}


def write_rollback(plan_file: Path, before: Mapping[Partition, Brokers]) -> Path:
    """Write the way back from a plan beside it, and return the file's name."""
    path = rollback_path(plan_file)
    try:
        path.write_text(format_reassignment(before) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"the way back cannot be written to {path}: {error.strerror or error}.") from error
    return path
