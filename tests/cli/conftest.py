# SPDX-License-Identifier: Apache-2.0
"""Sidecars' admin servers for the commands that talk to them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import Admin
from tests.cli.made_up_cluster import CLUSTER, MadeUpCluster, say
from tests.cli.plans import NOW
from tests.proxy.page.made_up import side
from tests.proxy.page.made_up import status as made_up_status
from weir.cli import fleet, stale, status, throttle


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
def cluster(monkeypatch: pytest.MonkeyPatch) -> MadeUpCluster:
    made_up = MadeUpCluster()

    @contextmanager
    def connected(bootstrap: str, command_config: Path | None) -> Iterator[MadeUpCluster]:
        assert bootstrap == "127.0.0.1:1"
        made_up.command_config = command_config
        yield made_up

    for module in (fleet, stale, status, throttle):
        monkeypatch.setattr(module, "cluster_of", connected)
    return made_up


@pytest.fixture
def both(admins: list[Admin], cluster: MadeUpCluster) -> list[str]:
    """The options that name the cluster, and both sidecars on loopback."""
    for number, admin in enumerate(admins, start=1):
        say(admin, {**made_up_status(leader=side()), "broker_id": number})
    return [*CLUSTER, *(word for admin in admins for word in ("--admin", admin.address))]


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def hour_east_of_utc() -> Iterator[None]:
    """Local time an hour ahead of UTC, without summer time."""
    yield from _in_zone("CET-1")


@pytest.fixture
def berlin() -> Iterator[None]:
    """Local time with summer time, which begins and ends on the last Sundays of March and October."""
    yield from _in_zone("CET-1CEST,M3.5.0,M10.5.0/3")


def _in_zone(zone: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def late_evening(monkeypatch: pytest.MonkeyPatch, hour_east_of_utc: None) -> None:
    """`weir plan` is asked at `tests.cli.plans.NOW`."""
    monkeypatch.setattr("weir.cli.plan._now", lambda: NOW)
