# SPDX-License-Identifier: Apache-2.0
"""Why no broker can be reached is told within seconds, by its cause."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from weir.control import reachable
from weir.control.cluster_admin import ClusterAdmin
from weir.control.errors import ControlError
from weir.control.reachable import why_unreachable

TLS = "give --command-config with security.protocol=SSL or SASL_SSL"


@contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """Answers each connection with these bytes, after its first request, and closes it; None: it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.recv(100)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in kept:
            connection.close()


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def test_broker_that_answers_is_enough(closed: str) -> None:
    with server(b"\0\0\0\6") as there, server(None) as silent:
        begun = time.monotonic()
        assert why_unreachable([closed, silent, there], speaks_tls=False) is None
        assert time.monotonic() - begun < 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\x15\x03\x03\0\2\2\x50", f"speaks TLS: {TLS}"),
        (b"", f"closes the connection unanswered: if it speaks TLS, {TLS}"),
    ],
)
def test_server_that_speaks_tls_is_told(answer: bytes, why: str) -> None:
    with server(answer) as there:
        assert why_unreachable([there], speaks_tls=False) == f"{there} {why}"
        assert why_unreachable([there], speaks_tls=True) is None


def test_each_cause_is_named(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "PROBE_SECONDS", 0.3)
    with server(None) as silent:
        assert why_unreachable([closed, silent], speaks_tls=False) == (
            f"{closed} refuses connections: no broker listens there; {silent} did not answer within 0.3 s"
        )
    assert why_unreachable(["no-such-host.invalid:9092"], speaks_tls=False) == (
        "no-such-host.invalid:9092 has a name that does not resolve"
    )


def test_client_of_a_cluster_that_is_down_says_so_at_once(closed: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ControlError, match=f"Connecting failed: {closed} refuses connections"):
        ClusterAdmin([closed], probes_first=True)
    assert time.monotonic() - begun < 5
