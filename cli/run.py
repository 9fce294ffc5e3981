# SPDX-License-Identifier: Apache-2.0
"""`weir run` and `weir check`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli import configured
from weir.cli.capture_run import run_captured
from weir.cli.checkup import HostsOption, exit_status, keys_of, look_around, print_findings, running_sidecar
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.sidecars import JsonOption
from weir.proxy.config.route_checks import capture_notes
from weir.proxy.config.tables import SIDES, CaptureTable, Config, Egress, Ingress
from weir.proxy.config.throttle import settings_of_sides

if TYPE_CHECKING:
    from weir.proxy.checkup.findings import Finding

ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help="The configuration file (TOML).")]
FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE", help="The configuration file (TOML).")]


def run(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The configuration file (TOML).")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="With [capture]: start whatever is missing, and wait for it beside the path.")
    ] = False,
    capture: Annotated[
        int | None, typer.Option("--capture", metavar="PORT", help="Without a file: capture brokers' own port.")
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="With --capture: a broker.")
    ] = None,
    admin_listen: Annotated[
        str | None,
        typer.Option(
            "--admin-listen",
            metavar="HOST:PORT",
            help="With --capture: where commands and scrapes reach it, as in 0.0.0.0:9690; else on loopback alone.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="With --admin-listen: the token that commands have to show."),
    ] = None,
) -> int:
    """Run the sidecar until SIGTERM or SIGINT; SIGHUP reloads the file."""
    if config is not None:
        if any(one is not None for one in (capture, bootstrap_server, admin_listen, token_file)):
            raise CommandError("--config has all that is needed: leave the other options out.", WRONG_USAGE)
        return configured.run(config, waits=wait)
    if wait:
        raise CommandError("--wait needs --config: without a file there is nothing to wait for.", WRONG_USAGE)
    if capture is None or bootstrap_server is None:
        raise CommandError("give --config FILE, or --capture PORT and --bootstrap-server HOST:PORT.", WRONG_USAGE)
    return run_captured(capture, bootstrap_server, admin_listen, token_file)


def check(
    file: FileArgument = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The configuration file (TOML).")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask upstreams who they are, and compare names, ports and topics.")
    ] = False,
    hosts_file: HostsOption = None,
    json_wanted: JsonOption = False,
) -> int:
    """Check a configuration file: its keys and values, and that no route loops; with --live what it leads to."""
    path = the_file(file, config)
    if path is None:
        raise CommandError("give the file to check.", WRONG_USAGE)
    loaded = configured.load(path)
    notes = [*_notes(loaded), *_notes_on_files(loaded)]
    findings: list[Finding] = []
    if live:
        from weir.proxy.checkup.live import live_findings
        from weir.proxy.checkup.machine import sidecar_process

        process = sidecar_process(path)
        hung = process.pid if process.is_sidecar else None
        findings = live_findings(loaded, look_around(loaded, hosts_file), running_sidecar(loaded), hung)
    if json_wanted:
        plain = {"file": str(path), "valid": True, "broker_id": loaded.broker_id, "notes": notes}
        print(json.dumps({**plain, "live": [finding.plain() for finding in findings]} if live else plain))
        return exit_status(findings)
    print(f"{path}: valid, for broker {loaded.broker_id}.")
    for ingress in loaded.ingress:
        print(f"  ingress  {ingress.listen} -> {ingress.upstream}{_tls(ingress, loaded)}")
    for egress in loaded.egress:
        print(f"  egress   {egress.listen} -> {egress.upstream} (peer {egress.peer}){_tls(egress, loaded)}")
    if loaded.capture is not None:
        print(f"  capture  {_captured(loaded, loaded.capture)}")
    print(f"  admin    {loaded.admin.listen}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print_findings(findings)
    return exit_status(findings)


def the_file(file: Path | None, config: Path | None) -> Path | None:
    """Return the one file that is named, with or without --config; CommandError where there are two."""
    if file is not None and config is not None:
        raise CommandError("give one file, with or without --config.", WRONG_USAGE)
    return file or config


def _tls(route: Ingress | Egress, config: Config) -> str:
    """Return how a route uses TLS, to be shown behind it."""
    if route.tls is not None:
        return ", TLS on both ends" if route.upstream_tls is not None else ", TLS ends here"
    return _between_sidecars(route.sidecar_tls or ("off" if config.sidecar_tls is None else config.sidecar_tls.mode))


def _between_sidecars(mode: str) -> str:
    return {"off": "", "prefer": ", TLS between sidecars preferred"}.get(mode, ", TLS between sidecars required")


def _captured(config: Config, capture: CaptureTable) -> str:
    """Return what is captured, and how TLS is used with it."""
    shown = f"port {capture.port}, {' and '.join(capture.sides)}, from {capture.from_}, {capture.when}"
    if capture.tls is not None or capture.peer_tls is not None:
        ended = {"leader's": capture.tls, "follower's": capture.peer_tls}
        sides = [side for side, table in ended.items() if table is not None]
        return f"{shown}, TLS on both ends of the {' and the '.join(sides)} side"
    return f"{shown}{_between_sidecars('off' if config.sidecar_tls is None else config.sidecar_tls.mode)}"


def _notes(config: Config) -> list[str]:
    """Return notes about settings that are legal but perhaps not meant.

    These are: an ingress where anyone may be a replica, a rate that throttles nothing, lists without a rate, an admin
    server that others can reach, a follower's side that cannot see what TLS carries.
    """
    notes = _notes_on_tls(config)
    if config.admin.without_tokens and not config.admin.listen.is_loopback:
        notes.append(
            f"admin.listen is {config.admin.listen}, and admin.without_tokens is set: whoever reaches it can change the"
            " throttle."
        )
    anyone = [f"ingress[{index}]" for index, one in enumerate(config.ingress) if one.replicas_from is None]
    if anyone and config.cluster is None:
        notes.append(
            f"{', '.join(anyone)}: without [cluster] or replicas_from whoever the broker serves has turns of its own"
            " for each broker id that it claims."
        )
    for side in SIDES:
        settings = settings_of_sides(config, config.throttle)[side]
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


def _notes_on_files(config: Config) -> list[str]:
    from weir.proxy.checkup.certificates import strictness_notes
    from weir.proxy.open_files import open_files

    all_keys = keys_of(config)
    told = [*strictness_notes(config, all_keys), *open_files(config, all_keys)]
    return [f"{tables}: {sentence}." for tables, sentence in told]


def _notes_on_tls(config: Config) -> list[str]:
    notes = capture_notes(config)
    routes: list[Ingress | Egress] = [*config.ingress, *config.egress]
    begins_tls = next((route for route in routes if route.upstream_tls is not None), None)
    kind = "ingress" if isinstance(begins_tls, Ingress) else "egress"
    secured = None if begins_tls is None else f"{kind}.upstream_tls"
    capture = config.capture
    if capture is not None and (capture.upstream_tls or capture.peer_upstream_tls) is not None:
        secured = "capture.upstream_tls" if capture.upstream_tls is not None else "capture.peer_upstream_tls"
    if secured is not None and (config.cluster is None or config.cluster.properties is None):
        notes.append(
            f"{secured} is for what brokers send: the sidecar's own questions to the cluster, such as for"
            " the names of topic ids, need [cluster] with properties."
        )
    ends_tls = any(route.tls is not None for route in routes)
    opaque = [str(egress.peer) for egress in config.egress if egress.tls is None]
    captured = capture is not None and capture.tls is not None and "follower" in capture.sides
    captured = captured and capture is not None and capture.peer_tls is None
    if not (ends_tls and opaque) and not captured:
        return notes
    where = f"of peer {', '.join(opaque)}" if opaque else "that are captured"
    return [
        *notes,
        f"brokers speak TLS, and the follower's side has no certificate for connections {where}: they pass as they are,"
        " and no quota counts them. A follower's quota can be kept by the leaders' sidecars: kept_at = \"leaders\".",
    ]
