# SPDX-License-Identifier: Apache-2.0
"""Requests to the admin servers of one or several sidecars."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.access.tls_contexts import client_context, trust
from weir.cli.errors import FAILED, WRONG_USAGE, CommandError
from weir.cli.output import printable_value
from weir.proxy.admin.tokens import tokens_in
from weir.proxy.config.address import Address

Row = Sequence[str]

TIMEOUT_SECONDS = 10.0
CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE = "WEIR_CA_FILE", "WEIR_CERTIFICATE_FILE", "WEIR_KEY_FILE"
"""The environment variables that name PEM files for HTTPS to sidecars: the authority to trust, then the certificate and
its key that a command shows. Without the first, requests are HTTP."""

TOKEN_VARIABLE = "WEIR_TOKEN_FILE"  # noqa: S105 - it names where the token is
"""The environment variable that names a file with the sidecars' token. An option would be seen by all in the process
list, and each command would need one."""

MAX_AT_ONCE = 16

AdminOption = Annotated[
    list[str] | None,
    typer.Option(
        "--admin",
        metavar="HOST:PORT",
        help="A sidecar's admin address; may be given several times. Its token: WEIR_TOKEN_FILE.",
    ),
]
ConfigOption = Annotated[
    list[Path] | None,
    typer.Option("--config", metavar="FILE", help="A sidecar's configuration file, for its admin address."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of one sidecar: `value` (JSON), or `error`, a sentence. `refused`: the request itself was wrong."""

    admin: Address
    value: Any = None
    error: str | None = None
    refused: bool = False


def admin_addresses(admin: Sequence[str] | None, config: Sequence[Path] | None) -> list[Address]:
    """Return the addresses that the options name, or 127.0.0.1:9690; CommandError for a wrong one."""
    from weir.proxy.config.load import load_config
    from weir.proxy.config.reader import ConfigError
    from weir.proxy.config.tables import DEFAULT_ADMIN

    addresses = []
    for text in admin or ():
        try:
            addresses.append(Address.parse(text))
        except ValueError as error:
            raise CommandError(f"--admin {error}.", WRONG_USAGE) from error
    for path in config or ():
        try:
            addresses.append(reachable(load_config(path).admin.listen))
        except ConfigError as error:
            raise CommandError(error.sentence(), WRONG_USAGE) from error
    return list(dict.fromkeys(addresses)) or [DEFAULT_ADMIN]


def ask_all(addresses: Sequence[Address], method: str, path: str, body: object = None) -> list[Reply]:
    """Send one request to every sidecar, to several at once. Replies are in the order of `addresses`."""
    with ThreadPoolExecutor(min(MAX_AT_ONCE, len(addresses))) as pool:
        return list(pool.map(lambda address: ask(address, method, path, body), addresses))


def ask(address: Address, method: str, path: str, body: object = None, tls: ssl.SSLContext | None = None) -> Reply:
    """Send one request to one sidecar, with WEIR_TOKEN_FILE's token. `tls` is that of connection_to."""
    headers = {"Content-Type": "application/json", **_authorization()}
    connection = connection_to(address, tls)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
    except TimeoutError:
        return Reply(address, error=f"the sidecar at {address} did not answer within {TIMEOUT_SECONDS:g} s")
    except OSError as error:
        return Reply(address, error=f"no sidecar answers at {address}: {error.strerror or error}{_why(address, error)}")
    except http.client.HTTPException as error:
        return Reply(address, error=f"what answers at {address} is not a sidecar: {type(error).__name__}")
    finally:
        connection.close()
    try:
        value = printable_value(json.loads(text))  # a lease's owner and reason are anybody's words
    except (ValueError, RecursionError):
        return Reply(address, error=f"what answers at {address} is not a sidecar: its answer is not JSON")
    if response.status != http.HTTPStatus.OK:
        sentence = value.get("error") if isinstance(value, dict) else None
        reason = str(sentence or f"status {response.status}").removesuffix(".")
        refused = response.status == http.HTTPStatus.BAD_REQUEST
        return Reply(address, error=f"the sidecar at {address} refused: {reason}", refused=refused)
    return Reply(address, value)


def _why(address: Address, error: OSError) -> str:
    if address.is_loopback or not isinstance(error, ConnectionRefusedError):
        return ""
    return " (one that listens on loopback alone, as by default, needs [admin] listen, or --admin-listen)"


def rows_of(replies: Sequence[Reply], rows: Callable[[Reply], Iterable[Row]]) -> tuple[list[Row], list[Reply]]:
    """Return the rows of all replies, and the replies, of which those of an unexpected form have become errors."""
    found: list[Row] = []
    checked = []
    for reply in replies:
        if reply.error is None:
            try:
                found += list(rows(reply))
            except (AttributeError, KeyError, TypeError, ValueError):
                reason = f"what answers at {reply.admin} is not a sidecar of this version: its answer has another form"
                reply = Reply(reply.admin, error=reason)
        checked.append(reply)
    return found, checked


def finish(replies: Sequence[Reply]) -> int:
    """Return 0 when every sidecar has done what was asked. Else CommandError says which have not, and why."""
    errors = [reply.error for reply in replies if reply.error is not None]
    if errors:
        refused = all(reply.refused for reply in replies if reply.error is not None)
        raise CommandError(f"{'; '.join(errors)}.", WRONG_USAGE if refused else FAILED)
    return 0


def as_json(replies: Sequence[Reply], name: str, indent: int | None = 2) -> str:
    """Return the replies as a JSON list, with `admin` and `name` or `error` for each sidecar."""
    return json.dumps(with_outcomes(replies, name), indent=indent)


def with_outcomes(replies: Sequence[Reply], name: str) -> list[dict[str, Any]]:
    """Return for each sidecar its `admin` address, and `name` with its answer or an `error`."""
    return [
        {"admin": str(reply.admin), name: reply.value}
        if reply.error is None
        else {"admin": str(reply.admin), "error": reply.error}
        for reply in replies
    ]


def connection_to(
    address: Address, tls: ssl.SSLContext | None = None, seconds: float = TIMEOUT_SECONDS
) -> http.client.HTTPConnection:
    """Return a connection that is not open yet: with TLS where CA_VARIABLE names the certificates to trust.

    `tls` is used where the variable is not set; None: no TLS.
    """
    ca, certificate = os.environ.get(CA_VARIABLE), os.environ.get(CERTIFICATE_VARIABLE)
    if not ca and tls is not None:
        return http.client.HTTPSConnection(address.host, address.port, timeout=seconds, context=tls)
    if not ca:
        return http.client.HTTPConnection(address.host, address.port, timeout=seconds)
    variable, path = CA_VARIABLE, ca
    try:
        context = client_context()
        trust(context, ca)
        if certificate:
            variable, path = CERTIFICATE_VARIABLE, certificate
            # a password is not asked for on the terminal
            context.load_cert_chain(certificate, os.environ.get(KEY_VARIABLE) or None, password=b"")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, ssl.SSLError) and error.reason) or getattr(error, "strerror", None) or str(error)
        raise CommandError(f"{variable} names {path}, which cannot be used: {reason}.", WRONG_USAGE) from error
    return http.client.HTTPSConnection(address.host, address.port, timeout=seconds, context=context)


def _authorization() -> dict[str, str]:
    path = os.environ.get(TOKEN_VARIABLE)
    if not path:
        return {}
    try:
        tokens = tokens_in(Path(path).read_bytes())
    except OSError as error:
        raise CommandError(
            f"{TOKEN_VARIABLE} names {path}, which cannot be read: {error.strerror}.", WRONG_USAGE
        ) from error
    if not tokens:
        raise CommandError(f"{TOKEN_VARIABLE} names {path}, which cannot be read: it holds no token.", WRONG_USAGE)
    return {"Authorization": f"Bearer {tokens[0].secret.decode()}"}


def reachable(listen: Address) -> Address:
    """Turn an address to listen on into one to connect to."""
    try:
        if ipaddress.ip_address(listen.host).is_unspecified:
            return Address("::1" if ":" in listen.host else "127.0.0.1", listen.port)
    except ValueError:
        pass  # a host name
    return listen
