# SPDX-License-Identifier: Apache-2.0
"""One sidecar as a whole, in the test's own event loop: its listeners, admin API, reloads and end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter

import msgspec
import pytest

from tests.proxy.exporting import until
from tests.proxy.whole_sidecar import Broker, configured, running
from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS
from weir.proxy import upstream_watch
from weir.proxy.config.address import Address
from weir.proxy.config.load import parse_config
from weir.proxy.config.tables import Admin, ThrottleTable
from weir.proxy.listeners import ListenError
from weir.proxy.relay.fetch_memory import DEFAULT_FETCH_MEMORY
from weir.proxy.sidecar import Sidecar

RECOVERY_RATE = "leader.recovery.throttled.rate"


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [(record.msg, record.__dict__["weir_fields"]) for record in caplog.records if record.name == "weir"]


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weir")


@pytest.mark.parametrize("wanted", [True, False])
async def test_metrics_series_by_partition_are_as_the_file_says(broker: Broker, wanted: bool) -> None:
    async with running(configured(broker, f"partition_series = {str(wanted).lower()}")) as weir:
        await weir.sidecar.upstreams.check()
        weir.sidecar.sides[0].throttle.stats.partition_bytes[b"orders"] = Counter({3: 17})
        text = b"".join(weir.sidecar.shown.metrics(""))
    assert (b'topic="orders"' in text) is wanted
    assert b"weir_ready 1" in text


async def test_sidecar_started_says_one_line_for_each_listener(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(configured(broker)) as weir:
        lines = [fields for event, fields in events(caplog) if event == "listening"]
        upstream = f"127.0.0.1:{broker.port}"
        ingress, egress = (str(listener.address) for listener in weir.sidecar.listeners)
        assert lines == [
            {"role": "ingress", "side": "leader", "listen": ingress, "upstream": upstream},
            {"role": "egress", "side": "follower", "listen": egress, "upstream": upstream, "peer": 2},
            {"role": "admin", "listen": weir.sidecar.admin_address},
        ]


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_sidecar_whose_admin_others_reach_warns_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, host: str, warned: bool
) -> None:
    config = configured(broker)
    listen = Address(host, 0)
    async with running(msgspec.structs.replace(config, admin=Admin(listen=listen, without_tokens=True))) as weir:
        lines = [fields["listen"] for event, fields in events(caplog) if event == "admin_not_on_loopback"]
        assert lines == [weir.sidecar.admin_address] * warned


async def test_sidecar_passes_bytes_and_counts_connections(broker: Broker) -> None:
    async with running(configured(broker)) as weir:
        address = weir.sidecar.listeners[0].address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
        assert (await reader.readexactly(14))[4:8] == bytes.fromhex("00000007")
        assert await weir.metric('weir_connections{side="leader"}') == 1
        for is_open in (True, False):
            for what in ("requests", "answers"):
                assert await weir.metric(f'weir_relayed_bytes_total{{side="leader",what="{what}"}}') == 14
            if is_open:
                writer.close()
                await until(lambda: not weir.sidecar.sides[0].stats.connections)
        assert await weir.metric('weir_connections_accepted_total{side="leader"}') == 1
        assert await weir.metric('weir_build_info{version="1.2.3"}') == 1


async def test_sidecar_names_a_taken_address_and_nothing_listens(broker: Broker) -> None:
    taken = f"127.0.0.1:{broker.port}"
    config = parse_config(
        f"""
        broker_id = 1
        [[ingress]]
        listen = "127.0.0.1:0"
        upstream = "127.0.0.1:1"
        [[egress]]
        peer = 2
        listen = "{taken}"
        upstream = "127.0.0.1:1"
        """
    )
    sidecar = Sidecar(config, "1")
    with pytest.raises(ListenError) as caught:
        await sidecar.start()
    assert str(caught.value) == f"egress[0].listen: cannot listen on {taken}: Address already in use"
    address = sidecar.listeners[0].address
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)


async def test_sidecar_tells_what_http_hides_of_the_file_until_gone(broker: Broker) -> None:
    throttle = ThrottleTable(leader_recovery_rate=5, leader_rate=6)
    async with running(msgspec.structs.replace(configured(broker), throttle=throttle)) as weir:

        async def hidden() -> object:
            return (await weir.call("GET", "/v1/status"))[1]["hidden_by_http"]

        assert await hidden() == {}
        await weir.call("PATCH", "/v1/throttle", {RECOVERY_RATE: 9})
        assert await hidden() == {"file": [RECOVERY_RATE]}
        await weir.call("DELETE", "/v1/throttle")
        assert await hidden() == {"file": [RECOVERY_RATE, LEADER_RATE]}
        await weir.call("DELETE", "/v1/throttle?source=http")
        assert await hidden() == {}


async def test_sidecar_tells_of_each_upstream_whether_it_is_there(broker: Broker) -> None:
    """An egress upstream that is down is seen without a connection through it, and leaves /readyz as it is."""
    config = configured(broker)
    with socket.create_server(("127.0.0.1", 0)) as down:
        address = Address(*down.getsockname())
    egress = msgspec.structs.replace(config.egress[0], upstream=address)
    async with running(msgspec.structs.replace(config, egress=(egress,))) as weir:
        await weir.sidecar.upstreams.check()
        assert await weir.metric("weir_ready") == 1
        assert await weir.metric('weir_upstream_up{side="leader"') == 1
        assert await weir.metric(f'weir_upstream_up{{peer="2",side="follower",upstream="{address}"}}') == 0
        assert (await weir.call("GET", "/readyz"))[0] == 200
        _, status = await weir.call("GET", "/v1/status")
        assert [(route["links"], route["upstream_up"]) for route in status["routes"]] == [(0, True), (0, False)]
        assert broker.server is not None
        broker.server.close()
        weir.sidecar.upstreams._asked_at = float("-inf")
        await weir.sidecar.upstreams.check()
        assert await weir.metric("weir_ready") == 0


async def test_sidecar_metrics_wait_for_no_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last look told is shown, also while the broker does not answer the next one."""
    monkeypatch.setattr(upstream_watch, "PROBE_TIMEOUT_SECONDS", 600.0)
    broker.silent = True
    async with running(configured(broker)) as weir, asyncio.timeout(20):
        await broker.asked.wait()  # by the first look
        assert await weir.metric("weir_ready") == 0  # nobody knows yet
        broker.silent = False
        broker.released.set()
        await weir.sidecar.upstreams.check()
        assert await weir.metric("weir_ready") == 1
        broker.silent = True
        broker.released.clear()
        broker.asked.clear()
        weir.sidecar.upstreams._asked_at = float("-inf")
        looking = asyncio.create_task(weir.sidecar.upstreams.check())
        await broker.asked.wait()
        assert await weir.metric("weir_ready") == 1
        looking.cancel()


async def test_sidecar_readiness_is_known_beside_links(broker: Broker) -> None:
    """A broker that hangs keeps its connections: they do not tell that it answers."""
    async with running(msgspec.structs.replace(configured(broker), egress=())) as weir:
        await weir.sidecar.upstreams.check()
        assert await weir.metric("weir_ready") == 1
        address = weir.sidecar.listeners[0].address
        _, writer = await asyncio.open_connection(address.host, address.port)
        await until(lambda: weir.sidecar.listeners[0].links)
        assert broker.server is not None
        broker.server.close()
        weir.sidecar.upstreams._asked_at = float("-inf")
        await weir.sidecar.upstreams.check()
        assert await weir.metric("weir_ready") == 0
        writer.close()


async def test_sidecar_readyz_follows_the_ingress_upstream(broker: Broker) -> None:
    async with running(configured(broker)) as weir:
        assert await weir.call("GET", "/readyz") == (200, {"status": "ready"})
    assert broker.server is not None
    broker.server.close()
    async with running(configured(broker)) as weir:
        status, body = await weir.call("GET", "/readyz")
        assert (status, len(body["reasons"])) == (503, 1)
        assert f"127.0.0.1:{broker.port}" in body["reasons"][0]
        assert (await weir.call("GET", "/healthz"))[0] == 200


async def test_sidecar_throttle_of_the_file_is_in_force_on_both_sides(broker: Broker) -> None:
    config = configured(broker, throttle=f'"{LEADER_RATE}" = 5\n"follower.replication.throttled.rate" = 6')
    async with running(config) as weir:
        assert await weir.metric('weir_quota_bytes_per_second{side="leader"}') == 5
        assert await weir.metric('weir_quota_bytes_per_second{side="follower"}') == 6


async def test_sidecar_throttle_changed_by_http_is_in_force_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(configured(broker)) as weir:
        leader = weir.sidecar.sides[0].throttle
        replanned = []
        for relay in weir.sidecar._by_name.values():
            monkeypatch.setattr(type(relay.held), "wake_now", lambda held: replanned.append(leader.settings.rate))
        body = {LEADER_RATE: 7, "topics": {"orders": {LEADER_REPLICAS: "0:1,1:2"}}}
        assert (await weir.call("PUT", "/v1/throttle", body))[0] == 200
        # Held fetches of both sides are planned again, after the new rate is there.
        assert replanned == [7, 7]
        assert 0 in leader.rules.listed[b"orders"]
        assert 1 not in leader.rules.listed[b"orders"]  # of this list, broker 1 holds partition 0 alone
        assert (await weir.call("DELETE", "/v1/throttle"))[0] == 200
        assert leader.settings.rate is None
        assert b"orders" not in leader.rules.listed


async def test_sidecar_throttle_refused_by_http_leaves_the_old_one(broker: Broker) -> None:
    async with running(configured(broker, throttle=f'"{LEADER_RATE}" = 5')) as weir:
        status, body = await weir.call("PATCH", "/v1/throttle", {LEADER_RATE: -7})
        assert (status, body["field"]) == (400, LEADER_RATE)
        assert weir.sidecar.sides[0].throttle.settings.rate == 5


async def test_sidecar_reload_applies_what_it_can_and_names_the_rest(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Named is what needs a restart."""
    async with running(configured(broker, throttle=f'"{LEADER_RATE}" = 5')) as weir:
        await weir.call("PATCH", "/v1/throttle", {LEADER_RATE: 9})
        changed = configured(
            broker,
            """
            [quota]
            policy = "kip73"
            [fetch]
            response_max_bytes = 3
            [limits]
            connect_timeout_seconds = 1.5
            fetch_request_max_bytes = 1000
            [cluster]
            bootstrap_servers = "127.0.0.1:1"
            """,
            f'"{LEADER_RATE}" = 6',
        )
        weir.sidecar.reload(changed)
        leader = weir.sidecar.sides[0].throttle
        assert (leader.settings.rate, leader.settings.policy, leader.settings.response_max_bytes) == (6, "kip73", 3)
        relay = weir.sidecar._by_name["leader"]
        assert (relay.connect_seconds, relay.fetch_size_limit) == (1.5, 1000)
        assert {relay.fetch_memory.limit for relay in weir.sidecar._by_name.values()} == {DEFAULT_FETCH_MEMORY}
        assert len({id(relay.fetch_memory) for relay in weir.sidecar._by_name.values()}) == 1
        assert weir.sidecar.config.cluster is None
        assert (await weir.call("GET", "/v1/throttle"))[1]["sources"] == {LEADER_RATE: "file"}
        assert events(caplog)[-2:] == [
            ("http_throttle_undone", {"parts": LEADER_RATE, "effect": "the file's throttle is in force"}),
            (
                "config_reloaded",
                {
                    "changed": "cluster,quota,fetch,limits,throttle",
                    "needs_restart": "cluster",
                    "http_settings_replaced": 1,
                },
            ),
        ]
        assert await weir.metric('weir_config_reloads_total{result="ok"}') == 1


async def test_sidecar_reload_that_undoes_much_names_some_of_it(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """It undoes what was set over HTTP."""
    async with running(configured(broker)) as weir:
        await weir.call("PUT", "/v1/throttle", {"topics": {f"t{n:02}": {LEADER_REPLICAS: "*"} for n in range(12)}})
        weir.sidecar.reload(weir.sidecar.config)
        (undone,) = (fields["parts"] for event, fields in events(caplog) if event == "http_throttle_undone")
        assert str(undone).startswith(f"topics.t00.{LEADER_REPLICAS}, topics.t01.")
        assert str(undone).endswith(f"topics.t09.{LEADER_REPLICAS} and 2 more")


async def test_sidecar_draining_is_not_ready_and_takes_no_connection(broker: Broker) -> None:
    async with running(configured(broker)) as weir:
        address = weir.sidecar.listeners[0].address
        await weir.sidecar.drain()
        assert await weir.call("GET", "/readyz") == (
            503,
            {"status": "not ready", "reasons": ["the sidecar is draining"]},
        )
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address.host, address.port)


@pytest.mark.long
async def test_sidecar_drain_closes_what_does_not_end_in_time(broker: Broker) -> None:
    broker.silent = True
    async with running(configured(broker, "[limits]\ndrain_seconds = 0.05")) as weir:
        address = weir.sidecar.listeners[0].address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
        await broker.asked.wait()
        await weir.sidecar.drain()
        assert await reader.read() == b""
        writer.close()


async def test_sidecar_status_shows_both_sides(broker: Broker) -> None:
    throttle = f'"{LEADER_RATE}" = 5\n[throttle.topics.orders]\n"{LEADER_REPLICAS}" = "*"'
    async with running(configured(broker, throttle=throttle)) as weir:
        lag = weir.sidecar.sides[0].throttle.lag
        for partition in range(30):
            lag.asker().topic(2, b"orders").update(partition, 0, partition, 0.0)
        link = weir.sidecar.sides[0].throttle.link(2)
        status, body = await weir.call("GET", "/v1/status")
        assert (status, body["broker_id"], body["state"], body["ready"]) == (200, 1, "serving", True)
        assert [route["side"] for route in body["routes"]] == ["leader", "follower"]
        leader = body["sides"]["leader"]
        assert (leader["quota_bytes_per_second"], leader["policy"]) == (5, "strict")
        assert leader["throttled_topics"] == ["orders"]
        assert [shown["peer"] for shown in leader["links"]] == [2]
        assert leader["lag"]["messages"] == sum(range(30))
        assert leader["lag"]["partitions_behind"] == 29
        assert len(leader["lag"]["worst"]) == 20
        assert body["sides"]["follower"]["quota_bytes_per_second"] is None
        link.close()


async def test_sidecar_status_says_rates_sources_and_who_holds_up(broker: Broker) -> None:
    """It says where rates come from, and who holds replicas up."""
    throttle = f'"{LEADER_RATE}" = 5\n[throttle.topics.orders]\n"{LEADER_REPLICAS}" = "*"'
    async with running(configured(broker, throttle=throttle)) as weir:
        lag = weir.sidecar.sides[0].throttle.lag
        asker = lag.asker()
        asker.at = lag.now()  # it asked just now
        asker.topic(2, b"orders").update(0, 0, 9, lag.now())
        weir.sidecar.sides[0].throttle.link(2).partitions.behind_count = 1  # as its fetches would have it
        lease = {"seconds": 60, "owner": "ann", "reason": "new disks"}
        assert (await weir.call("PATCH", "/v1/throttle", {FOLLOWER_RATE: 7, "lease": lease}))[0] == 200
        _, body = await weir.call("GET", "/v1/status")
        assert body["fleet"] is False
        assert body["settings"][LEADER_RATE] == {"value": 5, "source": "file"}
        follower = body["settings"][FOLLOWER_RATE]
        assert 0 < follower.pop("ends_in_seconds") <= 60
        assert follower == {"value": 7, "source": "http", "owner": "ann", "reason": "new disks"}
        leader = body["sides"]["leader"]
        assert leader["held_up_by"]["by"] == "elsewhere"
        assert leader["lag"]["none_for_seconds"] == 0
        assert body["sides"]["follower"]["held_up_by"] == {"by": "nobody", "sentence": "Nothing is behind."}

        # a rate without a list holds nothing back; the other quota does
        change = {LEADER_RATE: 0, "leader.recovery.throttled.rate": 8, "topics": None}
        assert (await weir.call("PATCH", "/v1/throttle", change))[0] == 200
        _, body = await weir.call("GET", "/v1/status")
        assert "the quota has room (0 B/s of 8 B/s used)" in body["sides"]["leader"]["held_up_by"]["sentence"]


async def test_status_counts_as_many_of_a_link_as_it_says_are_held(broker: Broker) -> None:
    """One is known to be behind; six are, too, and have no high watermark yet."""
    throttle = f'"{LEADER_RATE}" = 0\n[throttle.topics.orders]\n"{LEADER_REPLICAS}" = "*"'
    async with running(configured(broker, throttle=throttle)) as weir:
        side = weir.sidecar.sides[0].throttle
        asker = side.lag.asker()
        asker.at = side.lag.now()
        for partition in range(7):
            asker.topic(2, b"orders").update(partition, 0, 9, side.lag.now())
        partitions = side.link(2).partitions
        partitions.behind_count, partitions.unknown_count = 1, 6
        _, body = await weir.call("GET", "/v1/status")
        leader = body["sides"]["leader"]
        assert leader["held_up_by"]["sentence"].startswith("The quota holds 7 partitions back")
        assert [link["throttled_partitions_behind"] for link in leader["links"]] == [7]
