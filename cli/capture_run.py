# SPDX-License-Identifier: Apache-2.0
"""`weir run --capture PORT --bootstrap-server HOST:PORT`: a sidecar without a file, beside a broker that runs."""

from __future__ import annotations

from pathlib import Path

from weir.cli import configured
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.options import parse_given
from weir.cli.own_broker import own_broker
from weir.proxy.capture.requirements import CaptureError, check_broker, check_machine
from weir.proxy.config.address import Address
from weir.proxy.config.load import check_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Admin, CaptureTable, Cluster, Config


def run_captured(port: int, bootstrap_server: str, admin_listen: str | None, token_file: Path | None) -> int:
    """Ask the cluster which broker is this machine's, and run its sidecar until it is told to stop."""
    if not 1 <= port <= 65535:
        raise CommandError(f"--capture: {port} is no port: give one from 1 to 65535.", WRONG_USAGE)
    named = (server.strip() for server in bootstrap_server.split(","))
    servers = tuple(parse_given("--bootstrap-server", Address.parse, server) for server in named)
    admin = _admin(admin_listen, token_file)
    try:
        check_machine()
        check_broker(port)
    except CaptureError as error:
        raise CommandError(f"{error}.") from error
    config = Config(
        broker_id=own_broker(port, Cluster(bootstrap_servers=servers)),
        admin=admin,
        cluster=Cluster(bootstrap_servers=servers, follow_throttles=True),
        capture=CaptureTable(port=port),
    )
    try:
        check_config(config)
    except ConfigError as error:
        raise CommandError(error.sentence(), WRONG_USAGE) from error
    return configured.run_config(config, None)


def _admin(listen: str | None, token_file: Path | None) -> Admin:
    if listen is None:
        if token_file is not None:
            raise CommandError(
                "--token-file needs --admin-listen: on loopback nobody has to show a token.", WRONG_USAGE
            )
        return Admin()
    address = parse_given("--admin-listen", Address.parse, listen)
    if token_file is None and not address.is_loopback:
        raise CommandError(
            f"--token-file is missing: others than this machine reach {address}, and could change the throttle. Give a"
            " file with a token, the same on every broker.",
            WRONG_USAGE,
        )
    token = None if token_file is None else str(token_file)
    return Admin(listen=address, read_token_file=token, write_token_file=token)
