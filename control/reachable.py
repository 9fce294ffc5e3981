# SPDX-License-Identifier: Apache-2.0
"""Finds out soon why no broker can be reached: Kafka's clients try in silence for half a minute, and name no cause."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

PROBE_SECONDS: Final = 4.0
"""How long each server may take to be connected and to answer."""

_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 0, -1)  # v0, which every broker since 0.10 answers
_TLS_ALERT: Final = 0x15
_MOST_AT_ONCE: Final = 10


def why_unreachable(servers: Sequence[str], *, speaks_tls: bool) -> str | None:
    """Return why none of `servers` (host:port) can be used; None as soon as one can.

    `speaks_tls`: the client will. Then it is not looked at whether the server does.
    """
    reasons: dict[str, str] = {}
    pool = ThreadPoolExecutor(_MOST_AT_ONCE)
    try:
        asked = {pool.submit(_why_not, server, speaks_tls): server for server in servers}
        for done in as_completed(asked):
            reason = done.result()
            if reason is None:
                return None
            reasons[asked[done]] = reason
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return "; ".join(f"{server} {reasons[server]}" for server in servers)


def _why_not(server: str, speaks_tls: bool) -> str | None:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), PROBE_SECONDS) as connection:
            if speaks_tls:
                return None
            connection.sendall(_API_VERSIONS)
            answer = connection.recv(1)
    except socket.gaierror:
        return "has a name that does not resolve"
    except ConnectionRefusedError:
        return "refuses connections: no broker listens there"
    except ConnectionResetError:
        answer = b""
    except TimeoutError:
        return f"did not answer within {PROBE_SECONDS:g} s"
    except OSError as error:
        return f"cannot be reached ({error.strerror or error})"
    if not answer:
        return (
            "closes the connection unanswered: if it speaks TLS, give --command-config with security.protocol=SSL or"
            " SASL_SSL"
        )
    if answer[0] == _TLS_ALERT:
        return "speaks TLS: give --command-config with security.protocol=SSL or SASL_SSL"
    return None
