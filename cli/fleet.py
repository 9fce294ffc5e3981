# SPDX-License-Identifier: Apache-2.0
"""The sidecars of a whole cluster: found at the hosts of its brokers, or at the addresses of a DNS name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.cluster import CommandConfigOption, as_command_errors, connector
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.options import option
from weir.cli.sidecars import AdminOption, ConfigOption, Reply, admin_addresses, ask_all
from weir.proxy.config.address import Address
from weir.proxy.config.tables import DEFAULT_ADMIN

if TYPE_CHECKING:
    from weir.control.cluster_admin import ClusterAdmin, ThrottleSetting
    from weir.control.move_admin import MoveAdmin

DEFAULT_PORT = DEFAULT_ADMIN.port

_CLUSTER_SECONDS = 10.0
_DISTINCT = "sidecars that share a host have ports of their own: name them with --admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The sidecars that a command asks."""

    admin: AdminOption = None
    config: ConfigOption = None
    bootstrap_server: str | None = option(
        "--bootstrap-server", "HOST:PORT", "A cluster: the sidecars at its brokers' hosts."
    )
    command_config: CommandConfigOption = None
    admin_dns: str | None = option("--admin-dns", "NAME", "The sidecars at all addresses of a DNS name.")
    admin_port: int = option(
        "--admin-port", None, "The port of all sidecars found by either of these.", DEFAULT_PORT, min=1, max=65535
    )


@contextmanager
def cluster_of(bootstrap: str, command_config: Path | None) -> Iterator[MoveAdmin]:
    """Connect to a cluster; CommandError where it does not answer, here or in the block."""
    connect = connector(bootstrap, command_config, _CLUSTER_SECONDS)
    with as_command_errors(), connect() as cluster:
        yield cluster


def sidecars(where: Where, cluster: ClusterAdmin | None) -> dict[Address, int | None]:
    """Return the sidecars' addresses, each with its broker's id where that is known; CommandError for a wrong option.

    Those that are named one by one are all that there are. Else those of the DNS name, or of the cluster's brokers.
    """
    if where.admin_dns is not None and not (where.admin or where.config):
        return dict.fromkeys(Address(host, where.admin_port) for host in _addresses(where.admin_dns))
    if where.admin or where.config or cluster is None:
        return dict.fromkeys(admin_addresses(where.admin, where.config))
    hosts = sorted(cluster.broker_hosts().items())
    found: dict[Address, int | None] = {Address(host, where.admin_port): broker for broker, host in hosts}
    if len(found) < len(hosts):
        raise CommandError(f"{len(hosts)} brokers have {len(found)} hosts; {_DISTINCT}.", WRONG_USAGE)
    return found


def ask_sidecars(where: Where, method: str, path: str, body: object = None) -> list[Reply]:
    """Send one request to every sidecar."""
    if where.bootstrap_server is None:
        found = sidecars(where, None)
    else:
        with cluster_of(where.bootstrap_server, where.command_config) as cluster:
            found = sidecars(where, cluster)
    return ask_all(list(found), method, path, body)


def shown(throttle: ThrottleSetting) -> str:
    """Show where one of Kafka's own settings is: `broker 1: leader.replication.throttled.rate`."""
    return f"{throttle.kind} {throttle.name}: {throttle.setting}"


def _addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise CommandError(f"--admin-dns {name}: {reason or error}.") from error
    return sorted({str(target[0]) for *_, target in found})
