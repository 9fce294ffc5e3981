# SPDX-License-Identifier: Apache-2.0
"""A whole sidecar with a quota that it keeps for followers together with others: what is wired to what."""

from __future__ import annotations

import aiohttp
import pytest

from tests.fakes.metadata_broker import metadata_broker
from tests.proxy.exporting import until
from weir.proxy.config.load import parse_config
from weir.proxy.sidecar import Sidecar
from weir.quota.settings import LEAST_SHARE
from weir.quota.shares.share import Allotment

pytestmark = pytest.mark.long

QUOTA = {"name": "into", "side": "follower", "rate": 900, "kept_at": "leaders"}


async def test_known_followers_get_a_quota_and_others_are_answered() -> None:
    """Known are those that the cluster names."""
    async with metadata_broker() as broker, aiohttp.ClientSession() as session:
        config = parse_config(
            f"""
            broker_id = 2
            [[ingress]]
            listen = "127.0.0.1:0"
            upstream = "{broker.address}"
            [admin]
            listen = "127.0.0.1:0"
            [cluster]
            bootstrap_servers = "{broker.address}"
            """
        )
        sidecar = Sidecar(config, "1.2.3")
        await sidecar.start()
        try:
            leader, follower = (side.throttle for side in sidecar.sides)
            url = f"http://{sidecar.admin_address}"
            async with session.patch(f"{url}/v1/throttle", json={"quotas": [QUOTA]}) as response:
                assert response.status == 200
            await until(lambda: "into/1" in sidecar.exchange.shares)
            assert [(quota.name, quota.rate) for quota in leader.quotas[1:]] == [("into/1", LEAST_SHARE)]
            assert len(follower.quotas) == 1
            part = Allotment(rate=900, members=0, number=1, size=1, said_at=0, is_divided=False)
            question = {"broker_id": 3, "life": 1, "parts": {"into/1": part, "other": part}}
            async with session.post(f"{url}/v1/shares", json=question) as response:
                refused = (await response.json())["refused"]
            assert refused == {"into/1": "not_a_member", "other": "unknown_rate"}
            async with session.get(f"{url}/metrics") as response:
                metrics = await response.text()
            assert 'weir_share_bytes_per_second{rate="into/1"} 0' in metrics
            assert 'weir_share_reports_refused_total{reason="not_a_member"} 1' in metrics
        finally:
            await sidecar.close()
