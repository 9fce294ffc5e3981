#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A way round a dead sidecar: every route of its file is relayed as it is, unthrottled, until this is stopped.

    python3 way_round.py /etc/weir/weir.toml

It needs Python 3.11, and nothing of weir. Each listener of the file is relayed to its route's upstream. Ctrl-C or
SIGTERM ends it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import tomllib
from pathlib import Path

BUFFER_BYTES = 2**18
CONNECT_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """Relay the routes of a sidecar's file until a signal. Returns the exit status."""
    if len(arguments) != 1:
        return _failed("the sidecar's file is missing. Usage: way_round.py /etc/weir/weir.toml", 2)
    config = tomllib.loads(Path(arguments[0]).read_text())
    routes = [*config.get("ingress", []), *config.get("egress", [])]
    if not routes:
        return _failed(
            "the file has no [[ingress]] and no [[egress]]: with [capture] the kernel leads past a dead sidecar.", 2
        )
    for route in routes:
        if ("tls" in route) != ("upstream_tls" in route):
            return _failed(f"{route['listen']} has TLS at one end only, which this relay cannot do.", 2)
    if "tls" in config:
        print("[tls] is left out: sidecars that require it refuse these connections.", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for route in routes:
        try:
            listening = _listen(*_address(route["listen"]))
        except OSError as error:
            return _failed(f"cannot listen on {route['listen']} ({error.strerror}). Is the sidecar still alive?", 1)
        _start(_accept, listening, _address(route["upstream"]))
        print(f"{route['listen']} -> {route['upstream']}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(where)
    listening.listen(1024)
    return listening


def _start(function: object, *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()  # type: ignore[arg-type]


def _accept(listening: socket.socket, upstream: tuple[str, int]) -> None:
    while True:
        with contextlib.suppress(OSError):
            client, _ = listening.accept()
            _start(_relay, client, upstream)


def _relay(client: socket.socket, upstream: tuple[str, int]) -> None:
    """Carry a connection until both ends have sent their last byte, or one breaks."""
    with client, contextlib.suppress(OSError), socket.create_connection(upstream, timeout=CONNECT_SECONDS) as broker:
        broker.settimeout(None)
        for end in (client, broker):  # small requests and answers are not to wait for each other
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        back = threading.Thread(target=_copy, args=(broker, client), daemon=True)
        back.start()
        _copy(client, broker)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    try:
        while size := source.recv_into(buffer):
            target.sendall(buffer[:size])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _failed(sentence: str, status: int) -> int:
    print(f"way_round: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
