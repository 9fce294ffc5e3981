# SPDX-License-Identifier: Apache-2.0
"""Limits of clients in a whole sidecar: off, on at run time for links that are open, reloaded, and in the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.fakes import servers
from tests.proxy.limited import SINK, fetch, fetched
from tests.sample_files import lines_in
from weir.proxy.config.load import parse_config
from weir.proxy.sidecar import Sidecar
from weir.samples.schema import IntervalLine, LimitLine

FILE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:0"
upstream = "127.0.0.1:{port}"
[admin]
listen = "127.0.0.1:0"
"""
LIMIT = '[[limits.client]]\nclient_id = "connector-consumer-*"\n"record.rate.limit" = {}\n'


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each Fetch with 50 records."""
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            frame = await reader.readexactly(size)
            writer.write(fetched(int.from_bytes(frame[4:8], "big"), 50))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        writer.close()


@asynccontextmanager
async def serving(limits: str = "") -> AsyncIterator[tuple[Sidecar, int]]:
    """Run a sidecar with these limits before a made-up broker; gives it and the broker's port."""
    async with servers.serving(_answer) as (_, port):
        sidecar = Sidecar(parse_config(FILE.format(port=port) + limits), "1")
        await sidecar.start()
        try:
            yield sidecar, port
        finally:
            await sidecar.close()
            while Consumer.opened:
                Consumer.opened.pop().close()


class Consumer:
    """A connection that fetches."""

    opened: ClassVar[list[asyncio.StreamWriter]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.number = 0
        self.opened.append(writer)

    @classmethod
    async def of(cls, sidecar: Sidecar) -> Consumer:
        """Connect."""
        address = sidecar.listeners[0].address
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def fetch(self, client_id: str = SINK) -> None:
        """Fetch once; fails where that takes longer than a moment."""
        async with asyncio.timeout(3):
            self.number += 1
            self.writer.write(fetch(self.number, client_id=client_id))
            await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))

    async def is_held(self) -> bool:
        """Whether the next Fetch is not answered at once."""
        try:
            async with asyncio.timeout(0.2):
                await self.fetch()
        except TimeoutError:
            return True
        return False


async def test_limits_begin_and_end_at_run_time_for_open_links() -> None:
    async with serving() as (sidecar, _):
        consumer, base = await Consumer.of(sidecar), f"http://{sidecar.admin_address}/v1/limits"
        for _ in range(5):
            await consumer.fetch()
        assert sidecar._by_name["leader"].new_gate is None
        assert list(sidecar.limits.clients) == []
        async with aiohttp.ClientSession() as session:
            body = {"client": [{"client_id": SINK, "record.rate.limit": 1}]}
            async with session.put(base, json=body) as answer:
                assert await answer.json() == body
            await consumer.fetch()
            assert await consumer.is_held()
            await (await Consumer.of(sidecar)).fetch("another")
            async with session.delete(base):
                pass
        async with asyncio.timeout(3):  # the one that was held
            await consumer.reader.readexactly(int.from_bytes(await consumer.reader.readexactly(4), "big"))
        for _ in range(5):
            await consumer.fetch()


async def test_file_limits_are_in_force_at_start_and_after_a_reload() -> None:
    async with serving(LIMIT.format(1)) as (sidecar, port):
        consumer = await Consumer.of(sidecar)
        await consumer.fetch()
        sidecar.client_limits.clear()
        for _ in range(5):
            await consumer.fetch()
        sidecar.reload(parse_config(FILE.format(port=port) + LIMIT.format(1)))
        assert [table.client_id for table in sidecar.client_limits.tables] == ["connector-consumer-*"]
        await consumer.fetch()
        assert await consumer.is_held()
        sidecar.reload(parse_config(FILE.format(port=port)))
        assert sidecar.client_limits.tables == ()


@pytest.mark.long
async def test_limit_with_a_lease_gives_way_to_the_file_s_by_itself() -> None:
    async with serving(LIMIT.format(1e6)) as (sidecar, _):
        consumer, client_id = await Consumer.of(sidecar), "connector-consumer-*"
        changed = {"client": [{"client_id": client_id, "record.rate.limit": 1}], "lease": {"seconds": 1}}
        sidecar.client_limits.patch(changed)
        await consumer.fetch()
        assert await consumer.is_held()
        async with asyncio.timeout(5):  # the one that was held
            await consumer.reader.readexactly(int.from_bytes(await consumer.reader.readexactly(4), "big"))
        for _ in range(5):
            await consumer.fetch()
        assert sidecar.process.expired == {"limits_expired": 1}
        assert sidecar.client_limits.tables[0].options == {"record.rate.limit": 1e6}


async def test_metrics_have_kip_731_s_names_by_client_id() -> None:
    async with serving(LIMIT.format(1e6)) as (sidecar, _):
        consumer = await Consumer.of(sidecar)
        for _ in range(4):
            await consumer.fetch()
        text = b"".join(sidecar.shown.metrics("")).decode()
    found = {sample.name: sample for family in parse_text(text) for sample in family.samples}
    assert found["weir_task_records_total"].value == 200
    assert found["weir_task_record_rate_limit"].value == 1e6
    for name in ("weir_task_record_rate_avg", "weir_task_record_rate_max", "weir_task_throttled_ratio"):
        assert found[name].labels == {"client_id": SINK}
    for name in ("weir_limited_clients_evicted_total", "weir_limiters_disabled_total"):
        assert (found[name].labels, found[name].value) == ({}, 0)
    for name in ("weir_records_not_counted_total", "weir_limit_holds_cut_total"):
        assert found[name].value == 0


async def test_samples_tell_of_limited_clients(tmp_path: Path) -> None:
    export = f'[export]\ndirectory = "{tmp_path}"\ninterval_seconds = 60\n'
    async with serving(LIMIT.format(1e6) + export) as (sidecar, _):
        consumer = await Consumer.of(sidecar)
        for _ in range(4):
            await consumer.fetch()
            await consumer.fetch("another")
    *_, limit, end = lines_in(tmp_path)
    assert isinstance(limit, LimitLine)
    assert isinstance(end, IntervalLine)
    assert (limit.client_id, limit.records, limit.record_rate_limit, limit.task) == (SINK, 200, 1e6, 0)
    assert end.limits == 1
