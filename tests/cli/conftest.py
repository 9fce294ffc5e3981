"""Sidecars' admin servers for the commands that talk to them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.cli.commands import Admin


@pytest.fixture
def admins() -> Iterator[list[Admin]]:
    servers = [Admin(), Admin()]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    yield servers
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def admin(admins: list[Admin]) -> Admin:
    return admins[0]


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
