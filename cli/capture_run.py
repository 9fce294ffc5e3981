"""`weir run --capture PORT --bootstrap-server HOST:PORT`: a sidecar without a file, beside a broker that runs."""

from __future__ import annotations

from cli import configured
from cli.errors import WRONG_USAGE, CommandError
from proxy.capture.requirements import CaptureError, check_broker, check_machine
from proxy.config.address import Address
from proxy.config.load import check_config
from proxy.config.route_checks import addresses_of, is_local
from proxy.config.tables import CaptureTable, Cluster, Config, ConfigError


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
        broker_id=_own_broker(port, bootstrap_server),
        cluster=Cluster(bootstrap_servers=servers, follow_throttles=True),
        capture=CaptureTable(port=port),
    )
    try:
        check_config(config)
    except ConfigError as error:
        raise CommandError(error.sentence(), WRONG_USAGE) from error
    return configured.run_config(config, None)


def _own_broker(port: int, bootstrap_server: str) -> int:
    """Return the id of the one broker that listens at `port` of this machine, as the cluster says."""
    from control.cluster_admin import ClusterAdmin
    from control.errors import ControlError

    try:
        with ClusterAdmin([server.strip() for server in bootstrap_server.split(",")], timeout_seconds=10) as admin:
            listeners = admin.broker_listeners()
    except ControlError as error:
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
