# SPDX-License-Identifier: Apache-2.0
"""Commands that start from a configuration file. None of the command line's libraries may be imported here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.version import __version__
from weir.proxy.config.load import load_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Cluster, Config


def load(path: Path) -> Config:
    """Read and check a configuration file; CommandError says what is wrong with it."""
    try:
        return load_config(path, _own_broker)
    except ConfigError as error:
        raise CommandError(error.sentence(), WRONG_USAGE) from error


def run(path: Path, *, waits: bool = False) -> int:
    """Run the sidecar that the file describes until it is told to stop. Returns the exit status.

    `waits`: one that captures starts whatever is missing, and stays out of the path until it is there.
    """
    if waits:
        return _with_errors(lambda: _run_when_ready(path))
    return run_config(load(path), path)


def run_config(config: Config, path: Path | None) -> int:
    """Run a sidecar until it is told to stop. `path` is the file that SIGHUP loads again. Returns the exit status."""
    from weir.proxy import server

    return _with_errors(lambda: server.run_sidecar(config, path, __version__))


def _run_when_ready(path: Path) -> int:
    from weir.proxy.waiting import run_when_ready

    def loaded() -> Config:
        try:
            return load_config(path, _own_broker)
        except CommandError as error:  # the cluster does not tell which broker this is
            raise ConfigError("broker_id", error.sentence.removesuffix("."), str(path)) from error

    return run_when_ready(path, loaded, __version__)


def _with_errors(run: Callable[[], int]) -> int:
    """Run a sidecar; what keeps it from running becomes a CommandError."""
    from weir.proxy.server import CaptureError, ListenError

    try:
        return run()
    except (ListenError, CaptureError) as error:
        raise CommandError(f"{error}.") from error
    except ConfigError as error:  # a file that it names, and may no longer read without the privileges that it gave up
        raise CommandError(error.sentence(), WRONG_USAGE) from error


def _own_broker(port: int, cluster: Cluster) -> int:
    from weir.cli.own_broker import own_broker

    return own_broker(port, cluster)
