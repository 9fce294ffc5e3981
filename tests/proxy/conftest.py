# SPDX-License-Identifier: Apache-2.0
"""Hooks and fixtures of the tests of this folder."""

from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio

from tests.fakes.clock import MovedClock
from tests.fakes.metadata_broker import MetadataBroker, metadata_broker
from tests.fakes.relaying import pytest_asyncio_loop_factories
from tests.fakes.servers import serving
from tests.fakes.throttle_cluster import ThrottleCluster, throttle_cluster
from tests.proxy.administered import Client, Sidecar
from tests.proxy.watched import LISTS, ORDERS, PAYMENTS, Following, Watched
from tests.proxy.whole_sidecar import Broker
from weir.proxy.admin.access import Access
from weir.proxy.admin.http import AdminServer
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Admin
from weir.proxy.log import EventLog

__all__ = ["pytest_asyncio_loop_factories"]


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    """Who asks the admin server of a made-up sidecar, which asks for no token."""
    sidecar = Sidecar()
    server = AdminServer(sidecar, EventLog(), Access(Admin(), MovedClock()))
    address = await server.start(Address("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session:
        yield Client(sidecar, f"http://{address}", session, server._scrapes)
    await server.stop()


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker that answers."""
    broker = Broker()
    async with serving(broker.serve) as (broker.server, broker.port):
        yield broker
        broker.released.set()


@pytest_asyncio.fixture
async def naming_broker() -> AsyncIterator[MetadataBroker]:
    """A broker that knows two topics."""
    async with metadata_broker(topics={"orders": ORDERS, "payments": PAYMENTS}) as broker:
        yield broker


@pytest_asyncio.fixture
async def watched(naming_broker: MetadataBroker) -> AsyncIterator[Watched]:
    """The watch of a sidecar without `[cluster]` that asks that broker."""
    watched = Watched(naming_broker.address)
    yield watched
    watched.client.connections.close()


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ThrottleCluster]:
    """Two brokers, and two topics of which one has lists."""
    async with throttle_cluster(lists={"orders": dict(LISTS), "payments": {}}) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def following(cluster: ThrottleCluster) -> AsyncIterator[Following]:
    """A follower of them that follows Kafka's whole rates."""
    following = Following(cluster)
    yield following
    await following.close()
