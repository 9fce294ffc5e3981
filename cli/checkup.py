# SPDX-License-Identifier: Apache-2.0
"""What `weir check --live` and `weir doctor` found, as lines or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.errors import DONE, FAILED, WRONG_USAGE, CommandError
from weir.cli.sidecars import ask, reachable

if TYPE_CHECKING:
    import ssl

    from weir.proxy.checkup.findings import Finding
    from weir.proxy.checkup.listening import Running
    from weir.proxy.checkup.routes import World
    from weir.proxy.config.tables import Config
    from weir.proxy.tls.live_keys import LiveKeys

HostsOption = Annotated[
    Path | None,
    typer.Option("--hosts-file", metavar="FILE", help="The broker's own hosts file (its jdk.net.hosts.file)."),
]


def look_around(config: Config, hosts_file: Path | None) -> World:
    """Look at all upstreams; CommandError where the hosts file cannot be read."""
    from weir.proxy.checkup.live import live_world

    try:
        return live_world(config, hosts_file)
    except OSError as error:
        raise CommandError(
            f"--hosts-file {hosts_file}: cannot be read: {error.strerror or error}.", WRONG_USAGE
        ) from error


def running_sidecar(config: Config) -> Running | None:
    """Return the sidecar that answers at the configuration's admin address; None where none does."""
    from weir.proxy.checkup.listening import Running

    admin, tls = reachable(config.admin.listen), own_tls(config)
    if ask(admin, "GET", "/healthz", tls=tls).value != {"status": "ok"}:
        return None
    status = ask(admin, "GET", "/v1/status", tls=tls).value
    try:
        return Running(int(status["broker_id"]), frozenset(str(route["listen"]) for route in status["routes"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return Running()


def own_tls(config: Config) -> ssl.SSLContext | None:
    """Return what a configuration's sidecar asks the others with; None: without TLS. ConfigError for its files."""
    from weir.proxy.config.keys import AdminKeys

    return None if config.admin.tls is None else AdminKeys(config.admin.tls, strict=config.strict_tls).client_context()


def keys_of(config: Config) -> list[LiveKeys]:
    """Return the keys of the routes and of the admin server, each once. ConfigError for their files."""
    from weir.proxy.config.keys import AdminKeys, RouteKeys

    admin = () if config.admin.tls is None else AdminKeys(config.admin.tls, strict=config.strict_tls).all_keys
    return [*RouteKeys(config).all_keys, *admin[:1]]  # the second is the same files, to ask other sidecars with


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each finding."""
    for finding in findings:
        print(f"{finding.level:<4}  {finding.about}: {finding.sentence}{'' if finding.sentence.endswith('?') else '.'}")


def exit_status(findings: Sequence[Finding]) -> int:
    """Return 1 where something failed; warnings are no failure."""
    return FAILED if any(finding.level == "fail" for finding in findings) else DONE
