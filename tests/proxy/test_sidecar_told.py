# SPDX-License-Identifier: Apache-2.0
"""One sidecar as a whole: what it exports and takes samples of, and what it is told of its cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.fakes.metadata_broker import metadata_broker
from tests.fakes.servers import serving
from tests.proxy.cluster_broker import Broker as ClusterBroker
from tests.proxy.whole_sidecar import Broker, configured, running
from tests.sample_files import lines_in, of_kind
from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.proxy.admin import history
from weir.proxy.relay.side import HeldFetches
from weir.proxy.sidecar import Sidecar
from weir.quota.throttle import Throttle
from weir.samples.schema import IntervalLine, LinkLine


async def test_sidecar_takes_samples_from_its_start_to_its_end(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SAMPLE_SECONDS", 0.01)
    async with running(configured(broker)) as weir:
        seen: list[float] = []
        async with asyncio.timeout(10):
            while len(seen) < 2:
                seen = (await weir.call("GET", "/v1/history"))[1]["sides"]["leader"]["at"]
        samples = weir.sidecar.shown.history.sides[0].samples
    taken = len(samples)
    await asyncio.sleep(0.05)
    assert len(samples) == taken


async def test_sidecar_isr_of_the_cluster_reaches_both_throttles(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has tests of its own; this is its wiring: throttled topics in, ISR out, polled at once on a change."""
    under: dict[str, object] = {}
    reached = asyncio.Event()

    def set_under_min_isr(throttle: Throttle, partitions: frozenset[tuple[bytes, int]]) -> None:
        under[throttle.side] = partitions
        if partitions:
            reached.set()

    monkeypatch.setattr(Throttle, "set_under_min_isr", set_under_min_isr)
    bootstrap = ClusterBroker()
    async with serving(bootstrap.serve) as (_, bootstrap.port):
        throttle = f'[throttle.topics.idle]\n"{LEADER_REPLICAS}" = "*"'
        config = configured(broker, f'[cluster]\nbootstrap_servers = "127.0.0.1:{bootstrap.port}"', throttle)
        async with running(config) as weir:
            await asyncio.sleep(0)
            assert bootstrap.asked == []  # lists without a rate throttle nothing
            await weir.call("PATCH", "/v1/throttle", {LEADER_RATE: 7, "topics": {"orders": {LEADER_REPLICAS: "*"}}})
            async with asyncio.timeout(2):
                await reached.wait()
            assert bootstrap.asked == [["idle", "orders"]]
            for side in weir.sidecar.sides:
                assert side.throttle.in_isr(b"orders", 0, 2)
                assert not side.throttle.in_isr(b"orders", 0, 3)
            assert under == {"leader": {(b"orders", 1)}, "follower": {(b"orders", 1)}}
            for what, polls in (("topics", 1), ("configs", 1), ("topic_ids", 0)):
                assert await weir.metric(f'weir_cluster_polls_total{{result="ok",what="{what}"}}') == polls
                assert await weir.metric(f'weir_cluster_polls_total{{result="failed",what="{what}"}}') == 0
                assert (await weir.metric(f'weir_cluster_poll_bytes_total{{what="{what}"}}') > 50) == bool(polls)
            assert 0 < await weir.metric('weir_cluster_poll_seconds{what="topics"}') < 2
            assert 0 <= await weir.metric("weir_cluster_view_age_seconds") < 2


async def test_sidecar_names_of_throttled_topics_reach_both_throttles(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver has tests of its own; this is its wiring: asked at once on a change, and planned again."""
    async with metadata_broker(topics={"orders": b"o" * 16}, released=asyncio.Event()) as own:
        broker.port = own.port
        async with running(configured(broker)) as weir:
            replanned = asyncio.Event()
            names = weir.sidecar.process.topic_names
            throttles = [side.throttle for side in weir.sidecar.sides]

            def replan(held: HeldFetches) -> None:
                if names.name_of(b"o" * 16):
                    replanned.set()

            assert names.name_of(b"x" * 16) is None
            await weir.call("PATCH", "/v1/throttle", {LEADER_RATE: 7, "topics": {"orders": {LEADER_REPLICAS: "*"}}})
            generations = [throttle.rules.generation for throttle in throttles]
            monkeypatch.setattr(HeldFetches, "wake_now", replan)
            own.released.set()
            async with asyncio.timeout(2):
                await replanned.wait()
            assert all(throttle.topic_names is names for throttle in throttles)
            assert [throttle.rules.generation for throttle in throttles] == [before + 1 for before in generations]
            assert await weir.metric("weir_topic_ids_unknown") == 1
            assert (await weir.call("GET", "/v1/status"))[1]["topic_ids_unknown"] == 1


async def test_sidecar_exports_to_its_last_moment_and_counts_samples(broker: Broker, tmp_path: Path) -> None:
    config = configured(broker, f'[export]\ndirectory = "{tmp_path}"')
    sidecar = Sidecar(config, "1.2.3")
    await sidecar.start()
    sidecar.sides[0].throttle.link(2)
    await sidecar.drain()
    await sidecar.close()
    assert sidecar.process.export.written["file"] == 1
    link, end = lines_in(tmp_path)
    assert isinstance(link, LinkLine) and isinstance(end, IntervalLine)
    assert (end.broker_id, end.sequence, end.version, end.interval_seconds) == (1, 1, "1.2.3", 10.0)
    assert (link.side, link.peer, link.connections) == ("leader", 2, 1)


@pytest.mark.parametrize("has_ingress", [True, False])
async def test_sidecar_exports_what_clients_move_on_the_leaders_side(
    broker: Broker, tmp_path: Path, has_ingress: bool
) -> None:
    """What passes on the other side is the broker's own."""
    config = configured(broker, f'[export]\ndirectory = "{tmp_path}"')
    sidecar = Sidecar(config if has_ingress else msgspec.structs.replace(config, ingress=()), "1.2.3")
    await sidecar.start()
    for listener in sidecar.listeners:
        reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
        for _ in range(1 if listener.side.stats.side == "leader" else 3):
            writer.write(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
            await reader.readexactly(14)
        writer.close()
    await sidecar.drain()
    await sidecar.close()
    (end,) = of_kind(lines_in(tmp_path), IntervalLine)
    assert (end.client_bytes_in, end.client_bytes_out) == ((14, 14) if has_ingress else (None, None))


async def test_sidecar_without_export_counts_nothing_for_samples(broker: Broker) -> None:
    sidecar = Sidecar(configured(broker), "1.2.3")
    await sidecar.start()
    assert [side.throttle.stats.interval for side in sidecar.sides] == [None, None]
    await sidecar.close()


async def test_sidecar_serves_though_samples_have_no_place(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    config = configured(broker, f'[export]\ndirectory = "{tmp_path / "file"}"\ninterval_seconds = 1')
    sidecar = Sidecar(config, "1.2.3")
    await sidecar.start()
    assert await sidecar.shown.not_ready() == []
    await sidecar.close()
    assert sidecar.process.export.dropped["file", "write_failed"] == 1
