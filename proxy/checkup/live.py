# SPDX-License-Identifier: Apache-2.0
"""Compares a configuration with the cluster and the machine as they are now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from weir.proxy.checkup.certificates import gap_findings, peer_gap
from weir.proxy.checkup.findings import Finding
from weir.proxy.checkup.listening import Running, listening_findings
from weir.proxy.checkup.look import Seen, look
from weir.proxy.checkup.routes import World, resolver, route_findings
from weir.proxy.config.address import Address
from weir.proxy.config.keys import RouteKeys, connection_options
from weir.proxy.config.route_checks import addresses_of
from weir.proxy.config.tables import Config
from weir.proxy.log import os_error_reason
from weir.proxy.tls.keys import load_client_keys
from weir.proxy.tls.live_keys import TlsClient

_AT_ONCE: Final = 16
_SILENT_SECONDS: Final = 3.0


def live_world(config: Config, hosts_file: Path | None = None) -> World:
    """Look at all upstreams and servers. `hosts_file` is that of the broker's `jdk.net.hosts.file`.

    Raises OSError where that file cannot be read. It blocks, for some 15 s at most where something hangs.
    """
    broker_resolves = resolver(hosts_file)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it logs of a failed connection is told here
    seen, captured, gaps, silent = asyncio.run(_look_at_all(config))
    return World(seen, addresses_of, broker_resolves, captured, gaps, silent)


def live_findings(config: Config, world: World, running: Running | None, hung: int | None = None) -> list[Finding]:
    """Return what `weir check --live` shows, the listeners' addresses first."""
    return [*listening_findings(config, running, hung), *route_findings(config, world), *gap_findings(world.gaps)]


async def _look_at_all(
    config: Config,
) -> tuple[Mapping[Address, Seen], Seen | None, Mapping[Address, str], Mapping[Address, str]]:
    """Return what is at each address of the configuration, and what is at the captured port of its own broker.

    The third is what the certificates there lack for `[tls] strict`, where that is not set and so refuses nobody; the
    last why nobody answers where its own broker is to be found by others.
    """
    keys = RouteKeys(config)
    access = _access(config, strict=config.strict_tls)
    wanted: dict[Address, TlsClient | None] = {}
    for (_, route), (_, client) in zip(config.routes, [*keys.ingress, *keys.egress], strict=True):
        wanted.setdefault(route.upstream, client)
    for server in config.cluster.bootstrap_servers if config.cluster is not None else ():
        wanted.setdefault(server, None)
    limit = asyncio.Semaphore(_AT_ONCE)

    async def seen(address: Address, tls: TlsClient | None) -> Seen:
        async with limit:
            return await look(address, tls, access, tuple(config.throttle.topics))

    found = await asyncio.gather(*(seen(address, tls) for address, tls in wanted.items()))
    own = next((one.brokers[config.broker_id] for one in found if config.broker_id in one.brokers), None)
    captured = None
    looked = list(zip(found, wanted.values(), strict=True))
    if config.capture is not None and own is not None:
        client = keys.captured_ingress[1]
        captured = await seen(Address(own.host, config.capture.port), client)
        looked.append((captured, client))
    gaps = {} if config.strict_tls else await _gaps(looked, _access(config, strict=True))
    seen_at = dict(zip(wanted, found, strict=True))
    advertised = {
        Address(one.host, one.port)
        for ingress in config.ingress
        if (one := seen_at[ingress.upstream].brokers.get(config.broker_id)) is not None
    }
    reasons = {address: await _why_silent(address) for address in advertised}
    return seen_at, captured, gaps, {address: reason for address, reason in reasons.items() if reason is not None}


async def _why_silent(address: Address) -> str | None:
    """Return why an address takes no connection; None where it does."""
    try:
        async with asyncio.timeout(_SILENT_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return f"no answer within {_SILENT_SECONDS:g} s"
    except OSError as error:
        return os_error_reason(error)
    writer.transport.abort()
    return None


async def _gaps(looked: Sequence[tuple[Seen, TlsClient | None]], access: Mapping[str, Any]) -> Mapping[Address, str]:
    async def gap(seen: Seen, tls: TlsClient | None) -> str | None:
        if not seen.apis or not seen.speaks_tls:
            return None  # its certificate was not taken, or there is none
        if tls is None:
            return await peer_gap(seen.address, access["ssl_context"], seen.address.host)
        context = load_client_keys(replace(tls.keys.files, strict=True), checks_name=False).context
        return await peer_gap(seen.address, context, tls.server_name or seen.address.host)

    found = await asyncio.gather(*(gap(seen, tls) for seen, tls in looked))
    pairs = zip(looked, found, strict=True)
    return {seen.address: reason for (seen, _), reason in pairs if reason is not None}


def _access(config: Config, *, strict: bool) -> Mapping[str, Any]:
    return {} if config.cluster is None else connection_options(config.cluster, strict=strict)
