# SPDX-License-Identifier: Apache-2.0
"""Asks a cluster which of its brokers is the one beside this sidecar."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.proxy.cluster.channel import answers_tls
from weir.proxy.config.address import Address
from weir.proxy.config.route_checks import addresses_of, is_local
from weir.proxy.config.tables import Cluster

_ASK_SECONDS: Final = 10
_LOOK_SECONDS: Final = 2


def own_broker(port: int, cluster: Cluster) -> int:
    """Return the id of the one broker that listens at `port` of this machine, as the cluster says."""
    from weir.access.client_properties import PropertiesError, read_properties
    from weir.control.cluster_admin import ClusterAdmin
    from weir.control.errors import ControlError

    servers = cluster.bootstrap_servers
    try:
        options = {} if cluster.properties is None else read_properties(Path(cluster.properties)).options
        with ClusterAdmin(list(map(str, servers)), timeout_seconds=_ASK_SECONDS, client_options=options) as admin:
            listeners = admin.broker_listeners()
    except PropertiesError as error:
        raise CommandError(f"cluster.properties: {error}.", WRONG_USAGE) from error
    except ControlError as error:
        if cluster.properties is None and (secured := next(filter(_speaks_tls, servers), None)) is not None:
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


def _speaks_tls(server: Address) -> bool:
    async def looked() -> bool:
        async with asyncio.timeout(_LOOK_SECONDS):
            return await answers_tls(server)

    try:
        return asyncio.run(looked())
    except OSError:
        return False
