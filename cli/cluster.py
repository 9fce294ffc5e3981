# SPDX-License-Identifier: Apache-2.0
"""The connection of a command to a cluster: its options, and what is said where it cannot be had."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.options import option
from weir.control.errors import ControlError, MoveError
from weir.planning.proposals import ImpossibleProposal

if TYPE_CHECKING:
    from weir.control.move_admin import MoveAdmin

SLOW_SECONDS: Final = 1.0
"""After so long it is told that a connection to the cluster is still being made."""

CommandConfigOption = Annotated[
    Path | None,
    typer.Option("--command-config", metavar="FILE", help="Client properties, such as security.protocol."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The cluster that a command of `weir move` acts on."""

    bootstrap_server: str = option(
        "--bootstrap-server", "HOST:PORT", "Brokers to begin with, separated by commas.", MISSING
    )
    command_config: CommandConfigOption = None

    def connector(self) -> Callable[[], MoveAdmin]:
        """Return a function that connects to the cluster. CommandError where the options are wrong."""
        return connector(self.bootstrap_server, self.command_config)


@contextlib.contextmanager
def as_command_errors() -> Iterator[None]:
    """Within the block, turn errors of the cluster and of moves into CommandErrors."""
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
    # as kafka-clients read them: with a listener's name before it, and with a comma too many
    servers = [server.strip().rpartition("://")[2] for server in bootstrap_server.split(",") if server.strip()]
    for server in servers or [bootstrap_server]:
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

    def connect() -> MoveAdmin:
        with _say_when_slow(f"Connecting to {bootstrap_server}, which takes its time."):
            return MoveAdmin(servers, timeout_seconds=timeout_seconds, client_options=options, probes_first=True)

    return connect


@contextlib.contextmanager
def _say_when_slow(sentence: str) -> Iterator[None]:
    """Print a sentence to stderr once the block has taken SLOW_SECONDS."""
    timer = threading.Timer(SLOW_SECONDS, lambda: print(sentence, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
