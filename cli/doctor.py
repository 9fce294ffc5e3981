# SPDX-License-Identifier: Apache-2.0
"""`weir doctor`: what this machine lets a sidecar do, and with a file how it stands in the world."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli import configured
from weir.cli.checkup import HostsOption, exit_status, keys_of, look_around, own_tls, print_findings, running_sidecar
from weir.cli.run import FileArgument, the_file
from weir.cli.sidecars import connection_to
from weir.cli.version import __version__

if TYPE_CHECKING:
    import ssl

    from weir.proxy.checkup.findings import Finding
    from weir.proxy.checkup.routes import World
    from weir.proxy.config.address import Address
    from weir.proxy.config.tables import Config

_CLOCK_SECONDS = 2.0
_MOST_CLOCKS = 20


def doctor(
    file: FileArgument = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The configuration file (TOML).")
    ] = None,
    hosts_file: HostsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Look at this machine and, with a file, at all that it leads to: a line each, and what to do.

    Exit status: 0 all is well or only warnings, 1 something fails, 2 the file or the usage is wrong.
    """
    path = the_file(file, config)
    findings = _findings(path, None if path is None else configured.load(path), hosts_file)
    if as_json:
        print(json.dumps({"file": None if path is None else str(path), "found": [one.plain() for one in findings]}))
    else:
        print_findings(findings)
    return exit_status(findings)


def _findings(path: Path | None, config: Config | None, hosts_file: Path | None) -> list[Finding]:
    from weir.proxy.admin.troubles import connections_tracked
    from weir.proxy.checkup import machine
    from weir.proxy.checkup.certificates import certificate_findings, strictness_findings
    from weir.proxy.checkup.findings import Finding
    from weir.proxy.checkup.live import live_findings
    from weir.proxy.checkup.machine import readable_findings
    from weir.proxy.open_files import open_files

    process = machine.sidecar_process(path)
    findings = [machine.version_finding(__version__), *machine.way_findings(config), *machine.rules_findings()]
    findings += [*machine.process_findings(config, process), *machine.tracking_findings(connections_tracked())]
    clocks: dict[str, float] = {}
    if config is not None:
        world = look_around(config, hosts_file)
        running = running_sidecar(config)
        if running is None and not process.is_sidecar:
            sentence = "none runs with this file: nothing is throttled here (docs/operations.md#when-a-sidecar-dies)"
            findings.append(Finding("warn", "sidecar", sentence))
        findings += live_findings(config, world, running, process.pid if process.is_sidecar else None)
        all_keys = keys_of(config)
        findings += certificate_findings(config, all_keys, world, time.time())
        findings += strictness_findings(config, all_keys)
        findings += readable_findings(config, all_keys, process)
        findings += [Finding("warn", about, sentence) for about, sentence in open_files(config, all_keys)]
        clocks = _clocks(_others(config, world), own_tls(config))
    return [*findings, *machine.clock_findings(machine.kernel_says_synchronised(), clocks)]


def _others(config: Config, world: World) -> Iterable[Address]:
    """Return where other sidecars' admin servers would be."""
    from weir.proxy.config.address import Address

    if config.admin.fleet is not None:
        return config.admin.fleet
    told = {} if world.teller is None else world.teller.brokers
    return [Address(one.host, config.admin.listen.port) for number, one in told.items() if number != config.broker_id]


def _clocks(others: Iterable[Address], tls: ssl.SSLContext | None) -> dict[str, float]:
    """Return by how many seconds other machines' clocks are ahead of this one's, as their HTTP answers tell."""
    asked = list(others)[:_MOST_CLOCKS]
    with ThreadPoolExecutor(_MOST_CLOCKS) as pool:
        told = zip(asked, pool.map(partial(_seconds_ahead, tls=tls), asked), strict=True)
        return {str(address): seconds for address, seconds in told if seconds is not None}


def _seconds_ahead(address: Address, tls: ssl.SSLContext | None) -> float | None:
    connection = connection_to(address, tls, _CLOCK_SECONDS)
    try:
        connection.request("GET", "/healthz")
        date = connection.getresponse().headers.get("Date", "")
        return parsedate_to_datetime(date).timestamp() + 0.5 - time.time()  # a Date is cut to whole seconds
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
