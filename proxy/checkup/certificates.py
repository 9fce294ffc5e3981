# SPDX-License-Identifier: Apache-2.0
"""Certificates: how long they are valid, whether they have the names that brokers look for, and what they lack.

What RFC 5280 asks for and a certificate lacks is taken as Kafka's Java takes it, and refused with `[tls] strict`.
OpenSSL itself is asked: a certificate is told of where a handshake succeeds without `strict` and fails with it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from weir.proxy.checkup.findings import Finding, listed
from weir.proxy.config.address import Address, numeric_address
from weir.proxy.config.tables import Config, Egress
from weir.proxy.tls.keys import KeyFiles, KeysError, load_client_keys, load_server_keys, name_fits
from weir.proxy.tls.live_keys import LiveKeys

if TYPE_CHECKING:  # it brings kafka-python, which `weir check` does without
    from weir.proxy.checkup.routes import World

_DAY: Final = 86_400
_SOON_DAYS: Final = 30


def certificate_findings(config: Config, all_keys: list[LiveKeys], world: World, now: float) -> Iterator[Finding]:
    """Yield what is found of each certificate; `now` is in seconds since 1970."""
    names = list(_names_wanted(config, world))
    for keys in all_keys:
        if keys.keys.list_expires_at is not None and keys.keys.list_expires_at < now:
            sentence = "a list of revoked certificates (CRL) in ca has expired, and none of its authority is taken"
            yield Finding("fail", keys.name, f"{sentence}: put the authority's new one there")
        if keys.keys.expires_at is None:
            continue
        days = (keys.keys.expires_at - now) / _DAY
        own = listed(keys.keys.names) if keys.keys.names else "no name"
        if days < 0:
            yield Finding(
                "fail", keys.name, f"the certificate expired {-days:.0f} days ago: put a new one into its files"
            )
        elif days < _SOON_DAYS:
            sentence = f"the certificate (for {own}) expires in {days:.0f} days: put a new one into its files"
            yield Finding("warn", keys.name, sentence)
        else:
            yield Finding("ok", keys.name, f"the certificate (for {own}) is valid for {days:.0f} days")
        hosts = [host for field, host in names if field == keys.name]
        missing = [host for host in hosts if not any(name_fits(host, one) for one in keys.keys.names)]
        if missing:
            sentence = (
                f"the certificate is for {own}, and who connects here looks for {listed(missing)}: with host names"
                " checked (ssl.endpoint.identification.algorithm) it is refused; issue one with that name"
            )
            yield Finding("warn", keys.name, sentence)


def _names_wanted(config: Config, world: World) -> Iterator[tuple[str, str]]:
    """Yield the host by which those who connect know a listener that ends TLS, by the table of its keys."""
    for path, route in config.routes:
        broker_id = route.peer if isinstance(route, Egress) else config.broker_id
        told = world.seen[route.upstream].brokers.get(broker_id)
        if told is not None and numeric_address(told.host) is None:
            yield f"{path}.tls", told.host.casefold()
    if config.capture is None or config.capture.peer_tls is None or world.teller is None:
        return
    for broker_id, broker in sorted(world.teller.brokers.items()):
        if broker_id != config.broker_id and numeric_address(broker.host) is None:
            yield "capture.peer_tls", broker.host.casefold()


_STEP_SECONDS: Final = 5.0
_NAME: Final = "weir"  # no name is checked here
_MOST_TURNS: Final = 4  # of one end after the other, until the certificate has been judged


def strictness_notes(config: Config, all_keys: Iterable[LiveKeys]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the certificates in the configuration's files: the tables, and a sentence. It blocks."""
    tables: dict[str, list[str]] = {}
    for keys in all_keys:
        reason = own_gap(keys.files)
        if reason is not None and keys.name not in tables.setdefault(reason, []):
            tables[reason].append(keys.name)
    for reason, names in tables.items():
        yield listed(names), gap_sentence(reason, is_strict=config.strict_tls)


def strictness_findings(config: Config, all_keys: Iterable[LiveKeys]) -> Iterator[Finding]:
    """Yield what `strictness_notes` does, as findings: warnings, or failures where certificates are refused for it."""
    for names, sentence in strictness_notes(config, all_keys):
        yield Finding("fail" if config.strict_tls else "warn", names, sentence)


def gap_findings(gaps: Mapping[Address, str]) -> Iterator[Finding]:
    """Yield what is wrong with the certificates that others show: `gaps` has what `peer_gap` returned."""
    for reason in dict.fromkeys(gaps.values()):
        about = listed(address for address, gap in gaps.items() if gap == reason)
        yield Finding("warn", about, gap_sentence(reason, is_strict=False))


def gap_sentence(reason: str, *, is_strict: bool) -> str:
    """Return what a gap means and what to do, without a full stop."""
    begin = f"the certificate, or one that signed it, lacks what RFC 5280 asks for ({reason})"
    if is_strict:
        return f"{begin}, and [tls] strict = true refuses it: issue it anew as docs/tls.md tells, or set strict = false"
    return (
        f"{begin}: it is taken as Kafka's Java takes it, and would not be with [tls] strict = true;"
        " docs/tls.md tells how to issue one that lacks nothing"
    )


def own_gap(files: KeyFiles) -> str | None:
    """Return why others with the same `ca` would refuse this end's own certificate strictly; None: they would not.

    None as well where it has none, or nobody with that `ca` takes it.
    """
    if not files.has_certificate or files.ca is None:
        return None
    try:
        server = load_server_keys(files, "none").context
        if _refusal(load_client_keys(replace(files, strict=False), checks_name=False).context, server) is not None:
            return None
        refusal = _refusal(load_client_keys(replace(files, strict=True), checks_name=False).context, server)
    except KeysError:
        return None  # told where they are loaded
    return None if refusal is None else refusal.verify_message


async def peer_gap(address: Address, context: ssl.SSLContext, name: str) -> str | None:
    """Return why a strict `context` refuses who listens on an address that a lenient one takes; None: it does not."""
    try:
        async with asyncio.timeout(_STEP_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
            writer.transport.abort()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError:
        return None  # it was asked a moment ago, and what was wrong then is told
    return None


def _refusal(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLCertVerificationError | None:
    """Shake hands in memory, and return why the client does not take the server's certificate."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=_NAME)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MOST_TURNS):
        for end in (asking, answering):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error
    return None
