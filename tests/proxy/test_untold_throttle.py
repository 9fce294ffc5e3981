# SPDX-License-Identifier: Apache-2.0
"""What holds before the cluster has told what is to be throttled: nothing that is behind passes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.throttle_cluster import CONFIGS, METADATA, ThrottleCluster
from tests.proxy.watched import until
from weir.protocol.metadata import NO_ID
from weir.proxy.cluster import channel
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.throttle import settings_of_sides
from weir.proxy.sidecar import Sidecar
from weir.proxy.throttle import table
from weir.quota.scopes import Ends
from weir.quota.settings import LEADER_RATE, LEAST_SHARE
from weir.quota.throttle import Throttle

FILE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:0"
upstream = "{broker}"
[admin]
listen = "127.0.0.1:0"
[cluster]
bootstrap_servers = "{servers}"
follow_throttles = {follows}
"""
FOLLOWER = Ends(2, 2)


@asynccontextmanager
async def serving(cluster: ThrottleCluster, *, follows: bool = True) -> AsyncIterator[Sidecar]:
    broker, *_ = servers = cluster.addresses(1, 2)
    text = FILE.format(broker=broker, servers=",".join(map(str, servers)), follows=str(follows).lower())
    sidecar = Sidecar(parse_config(text), "1")
    await sidecar.start()
    try:
        yield sidecar
    finally:
        await sidecar.close()


def throttles(sidecar: Sidecar) -> list[Throttle]:
    return [side.throttle for side in sidecar.sides]


def holds_all(throttle: Throttle) -> bool:
    """Whether a quota of 0 covers any topic at all."""
    coverage = throttle.rules.coverage(b"any", NO_ID, FOLLOWER)
    return any(quota.rate == 0 and quota.limits and 7 in covered for quota, covered in coverage)


def is_untold(throttle: Throttle) -> bool:
    return throttle.rules.untold()["throttle"]


@pytest.mark.long
@pytest.mark.parametrize("hanging", [METADATA, CONFIGS])
async def test_nothing_behind_passes_before_kafkas_throttle_is_read(
    cluster: ThrottleCluster, hanging: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "QUESTION_TIMEOUT_SECONDS", 0.5)
    cluster.rates = {1: {LEADER_RATE: "1000"}}
    for broker in cluster.brokers.values():
        broker.silent = {hanging}
    async with serving(cluster) as sidecar:
        await until(lambda: hanging in cluster.brokers[1].asked)
        assert all(holds_all(one) and is_untold(one) for one in throttles(sidecar))
        for broker in cluster.brokers.values():
            broker.silent = set()
        await until(lambda: not any(is_untold(one) for one in throttles(sidecar)))
        assert not any(holds_all(one) for one in throttles(sidecar))
        leader, _ = throttles(sidecar)
        assert leader.settings.rate == 980
        assert 0 in leader.rules.listed[b"orders"]


async def test_replication_goes_on_if_kafkas_throttle_is_unreadable(
    cluster: ThrottleCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table, "UNTOLD_SECONDS", 0.3)
    caplog.set_level("INFO")
    for broker in cluster.brokers.values():
        broker.silent = {METADATA}
    async with serving(cluster) as sidecar:
        assert all(holds_all(one) for one in throttles(sidecar))
        await until(lambda: not any(holds_all(one) for one in throttles(sidecar)))
        assert not any(one.rules.is_throttling for one in throttles(sidecar))
    assert any("throttle_expired" in record.getMessage() for record in caplog.records)


async def test_what_is_shown_meanwhile_cannot_be_set_for_good(cluster: ThrottleCluster) -> None:
    for broker in cluster.brokers.values():
        broker.silent = {METADATA}
    async with serving(cluster) as sidecar:
        shown = await sidecar.throttle.as_plain()
        with pytest.raises(ConfigError) as refused:
            await sidecar.throttle.replace(shown)
    assert refused.value.field == "quotas[0].name"
    assert "no name of weir's own quotas" in str(refused.value)


async def test_brokers_that_tell_no_configs_are_not_waited_for(cluster: ThrottleCluster) -> None:
    for broker in cluster.brokers.values():
        del broker.versions[CONFIGS]
    async with serving(cluster) as sidecar:
        await until(lambda: not any(holds_all(one) for one in throttles(sidecar)))


async def test_nothing_is_held_where_kafkas_throttle_is_not_followed(cluster: ThrottleCluster) -> None:
    async with serving(cluster, follows=False) as sidecar:
        assert not any(one.rules.is_throttling for one in throttles(sidecar))


def test_each_followers_quota_holds_before_brokers_are_known() -> None:
    text = FILE.format(broker="127.0.0.1:1", servers="127.0.0.1:1", follows="false")
    text += '[[throttle.quotas]]\nname = "in"\nside = "follower"\nrate = 1000\nkept_at = "leaders"\n'
    config = parse_config(text)
    throttle = Throttle("leader", 1, lambda: 0.0, settings_of_sides(config, config.throttle)["leader"])
    (quota,) = [quota for quota, covered in throttle.rules.coverage(b"any", NO_ID, FOLLOWER) if 7 in covered]
    assert quota.rate == LEAST_SHARE
    assert is_untold(throttle)
    throttle.configure(settings_of_sides(config, config.throttle, [2, 3])["leader"])
    assert not is_untold(throttle)
    assert [quota.name for quota in throttle.quotas[1:]] == ["in/2", "in/3"]
