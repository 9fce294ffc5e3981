"""Hooks and fixtures of the tests of this folder."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.fakes.metadata_broker import MetadataBroker, metadata_broker
from tests.fakes.relaying import pytest_asyncio_loop_factories
from tests.fakes.throttle_cluster import ThrottleCluster, throttle_cluster
from tests.proxy.following import LISTS, Following
from tests.proxy.resolving import ORDERS, PAYMENTS, Resolving

__all__ = ["pytest_asyncio_loop_factories"]


@pytest_asyncio.fixture
async def naming_broker() -> AsyncIterator[MetadataBroker]:
    """A broker that knows two topics."""
    async with metadata_broker(topics={"orders": ORDERS, "payments": PAYMENTS}) as broker:
        yield broker


@pytest_asyncio.fixture
async def resolving(naming_broker: MetadataBroker) -> AsyncIterator[Resolving]:
    """A resolver that asks that broker."""
    resolving = Resolving(naming_broker.address)
    yield resolving
    resolving.client.disconnect()


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
