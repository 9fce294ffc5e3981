# SPDX-License-Identifier: Apache-2.0
"""Whether the addresses to listen on are free, or taken by the sidecar itself."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from weir.proxy.checkup.findings import Finding
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Config
from weir.proxy.log import os_error_reason


@dataclass(frozen=True, slots=True)
class Running:
    """A sidecar that answers at the configuration's admin address.

    `listens` are the addresses that it listens on; None where it does not tell, as it wants a token.
    """

    broker_id: int | None = None
    listens: frozenset[str] | None = None


def listening_findings(config: Config, running: Running | None, hung: int | None = None) -> Iterator[Finding]:
    """Yield what is found of each address to listen on. Each is bound for a moment, unless the sidecar has it.

    `hung` is the process of a sidecar that has this file and does not answer.
    """
    routes = [(f"{path}.listen", route.listen) for path, route in config.routes]
    if running is None and hung is not None:
        sentence = (
            f"process {hung} is the sidecar of this file and does not answer at {config.admin.listen}: if it does not"
            f" just start, it hangs; kill -9 {hung}, and start it again (docs/operations.md#when-a-sidecar-dies)"
        )
        yield Finding("fail", "sidecar", sentence)
        return
    if running is None:
        yield from (_free(about, address) for about, address in (*routes, ("admin.listen", config.admin.listen)))
        return
    if running.broker_id not in (None, config.broker_id):
        sentence = (
            f"{config.admin.listen} is taken by the sidecar of broker {running.broker_id}: give each sidecar of a"
            " machine a port of its own"
        )
        yield Finding("fail", "admin.listen", sentence)
        yield from (_free(about, address) for about, address in routes)
        return
    yield Finding("ok", "admin.listen", f"a sidecar runs, and answers at {config.admin.listen}")
    for about, address in routes:
        if running.listens is None:
            free = _free(about, address)
            sentence = f"{address} is taken, perhaps by the sidecar that runs: WEIR_TOKEN_FILE lets it tell"
            yield free if free.level == "ok" or "is taken" not in free.sentence else Finding("warn", about, sentence)
        elif str(address) in running.listens:
            yield Finding("ok", about, f"the sidecar that runs listens on {address}")
        else:
            free = _free(about, address)
            sentence = f"the sidecar that runs does not listen on {address}: restart it with this file"
            yield Finding("warn", about, sentence) if free.level == "ok" else free


def _free(about: str, address: Address) -> Finding:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return Finding("fail", about, f"the name {address.host} does not resolve on this machine: give an address")
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the sidecar does
        try:
            probe.bind(target)
        except OSError as error:
            return Finding("fail", about, _not_free(address, error))
    return Finding("ok", about, f"{address} is free")


def _not_free(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is taken by another process (ss -ltnp shows which): end it, or give another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address.host} is no address of this machine: correct it, or add it (ip addr add)"
    if error.errno == errno.EACCES:
        return f"port {address.port} is for root alone: give a port from 1024 on, or CAP_NET_BIND_SERVICE"
    return f"{address} cannot be listened on: {os_error_reason(error)}"
