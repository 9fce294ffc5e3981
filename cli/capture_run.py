"""`weir run --capture PORT --bootstrap-server HOST:PORT`: a sidecar without a file, beside a broker that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from weir.cli import configured
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.proxy.capture.requirements import CaptureError, check_broker, check_machine
from weir.proxy.cluster.upstream_probe import answers_tls
from weir.proxy.config.address import Address
from weir.proxy.config.load import check_config
from weir.proxy.config.route_checks import addresses_of, is_local
from weir.proxy.config.tables import CaptureTable, Cluster, Config, ConfigError

_ASK_SECONDS: Final = 10
_LOOK_SECONDS: Final = 2


def run_captured(port: int, bootstrap_server: str) -> int:
    """Ask the cluster which broker is this machine's, and run its sidecar until it is told to stop."""
    if not 1 <= port <= 65535:
        raise CommandError(f"--capture: {port} is no port: give one from 1 to 65535.", WRONG_USAGE)
    try:
        servers = tuple(Address.parse(server.strip()) for server in bootstrap_server.split(","))
    except ValueError as error:
        raise CommandError(f"--bootstrap-server: {error}.", WRONG_USAGE) from error
    try:
        check_machine()
        check_broker(port)
    except CaptureError as error:
        raise CommandError(f"{error}.") from error
    config = Config(
        broker_id=_own_broker(port, servers),
        cluster=Cluster(bootstrap_servers=servers, follow_throttles=True),
        capture=CaptureTable(port=port),
    )
    try:
        check_config(config)
    except ConfigError as error:
        raise CommandError(error.sentence(), WRONG_USAGE) from error
    return configured.run_config(config, None)


def _speaks_tls(server: Address) -> bool:
    async def looked() -> bool:
        async with asyncio.timeout(_LOOK_SECONDS):
            return await answers_tls(server)

    try:
        return asyncio.run(looked())
    except OSError:
        return False


def _own_broker(port: int, servers: Sequence[Address]) -> int:
    """Return the id of the one broker that listens at `port` of this machine, as the cluster says."""
    from weir.control.cluster_admin import ClusterAdmin
    from weir.control.errors import ControlError

    try:
        with ClusterAdmin([str(server) for server in servers], timeout_seconds=_ASK_SECONDS) as admin:
            listeners = admin.broker_listeners()
    except ControlError as error:
        if (secured := next(filter(_speaks_tls, servers), None)) is not None:
            raise CommandError(
                f"{secured} speaks TLS, in which nothing can be throttled without the broker's own key: write a file"
                " with [capture.tls], [capture.upstream_tls] and [cluster] properties, and give --config FILE."
            ) from error
        raise CommandError(f"{str(error).removesuffix('.')}.") from error
    found = [
        broker_id
        for broker_id, (host, listens) in listeners.items()
        if listens == port and any(map(is_local, addresses_of(host)))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandError(
            f"brokers {', '.join(map(str, sorted(found)))} all listen at port {port} of this machine: write a file for"
            " each sidecar, with broker_id and [capture] user."
        )
    ports = sorted({listens for _, listens in listeners.values()})
    raise CommandError(
        f"the cluster lists no broker at port {port} of this machine (its brokers listen at"
        f" {', '.join(map(str, ports)) or 'no port'}): give --capture the port that --bootstrap-server leads to."
    )
