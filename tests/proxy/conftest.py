"""Hooks and fixtures of the tests of this folder."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.fakes.metadata_broker import MetadataBroker, metadata_broker
from tests.fakes.relaying import pytest_asyncio_loop_factories
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
