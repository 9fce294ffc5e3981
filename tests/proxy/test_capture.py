# SPDX-License-Identifier: Apache-2.0
"""When a capture is in the path, with a packet filter that only remembers what it was told."""

import asyncio
import contextlib
import math
from ipaddress import ip_address

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.servers import connected
from tests.proxy.captured import BROKERS, capturing, settle
from weir.proxy.capture.pause import Pause
from weir.proxy.config.reader import ConfigError
from weir.proxy.log import EventLog


async def test_nothing_is_captured_before_the_brokers_are_known() -> None:
    async with capturing() as (capture, packet_filter, dropped):
        await settle()
        assert packet_filter.told == []
        assert capture.not_ready() is not None
        capture.learn(BROKERS)
        await settle()
        assert packet_filter.is_alive
        assert capture.is_in
        assert capture.not_ready() is None
        assert dropped.options == {"port": 9092, "peers": ["10.0.0.2"], "incoming": True, "outgoing": True}


async def test_each_brokers_connections_drop_once_when_it_is_known() -> None:
    """One that joins has direct connections from before its address was known; the others keep theirs."""
    joined = {**BROKERS, 3: frozenset({ip_address("10.0.0.3")})}
    async with capturing(sides=("leader",)) as (capture, packet_filter, dropped):
        capture.learn(BROKERS)
        await settle()
        capture.learn(joined)
        await settle()
        assert dropped.times == 2
        assert dropped.options == {"port": 9092, "peers": ["10.0.0.3"], "incoming": True, "outgoing": False}
        assert "10.0.0.3" in "\n".join(packet_filter.told)
        assert sum("add table" in commands for commands in packet_filter.told) == 1
        for known in (BROKERS, joined):  # it goes, and comes back with the address that it had
            capture.learn(known)
            await settle()
        assert dropped.times == 2


async def test_it_is_in_the_path_only_while_a_throttle_is_in_force() -> None:
    async with capturing(when="throttled") as (capture, packet_filter, dropped):
        capture.learn(BROKERS)
        await settle()
        assert not capture.is_in
        for times in (1, 2, 3):
            capture.throttle_changed(True)
            await settle()
            assert packet_filter.is_alive
            assert dropped.times == times
            capture.throttle_changed(False)
            await settle()
            assert not packet_filter.is_alive
            assert not capture.is_in


async def test_refusal_of_the_kernel_is_told_and_tried_again() -> None:
    async with capturing() as (capture, packet_filter, dropped):
        packet_filter.refuses = "Operation not permitted"
        capture.learn(BROKERS)
        await settle()
        assert capture.not_ready() == "nothing is captured: Operation not permitted"
        assert not capture.is_in
        packet_filter.refuses = None
        capture.throttle_changed(False)  # any change; by itself it tries each second
        await settle()
        assert capture.is_in
        assert capture.not_ready() is None
        assert dropped.times == 1


async def test_stepping_out_is_the_last_word() -> None:
    async with capturing() as (capture, packet_filter, _):
        capture.learn(BROKERS)
        await settle()
        await capture.step_out()
        capture.throttle_changed(True)
        await settle()
        assert not packet_filter.is_alive


async def test_connection_that_was_not_captured_is_closed() -> None:
    """It would loop: the sidecar would connect to itself."""
    async with capturing() as (capture, _, _):
        capture.learn(BROKERS)
        await settle()
        async with connected(capture.listeners[0].address.port) as (reader, _):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
        assert all(not listener.links for listener in capture.listeners)


@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_side_that_is_not_named_is_not_captured(side: str) -> None:
    async with capturing(sides=(side,)) as (capture, packet_filter, _):
        capture.learn(BROKERS)
        await settle()
        rules = [rule for told in packet_filter.told for rule in told.splitlines() if " to :" in rule]
        assert any("divert" in rule for rule in rules) == (side == "leader")
        assert any("ip daddr @peers4" in rule for rule in rules) == (side == "follower")


async def test_paused_capture_is_out_of_the_path_until_resumed() -> None:
    async with capturing() as (capture, packet_filter, dropped):
        capture.learn(BROKERS)
        await settle()
        capture.pause.begin({})
        await settle()
        assert not capture.is_in
        assert not packet_filter.is_alive
        assert capture.not_ready() is None
        assert "is paused: connections pass" in (capture.pause.sentence() or "")
        capture.pause.end()
        await settle()
        assert packet_filter.is_alive
        assert dropped.times == 2
        assert capture.pause.sentence() is None


async def test_a_pause_ends_with_its_lease_and_tells_who_began_it() -> None:
    clock, changes = MovedClock(), []
    pause = Pause(lambda: changes.append(1), EventLog(), clock)
    assert pause.next_expiry() == math.inf
    pause.begin({"lease": {"seconds": 600, "owner": "ann", "reason": "is it weir?"}})
    clock.move(100)
    assert pause.as_plain() == {"paused": True, "expires_in_seconds": 500, "owner": "ann", "reason": "is it weir?"}
    assert "paused for 500 s more (ann: is it weir?)" in (pause.sentence() or "")
    assert pause.expire() == []
    clock.move(500)
    assert [lease.owner for lease in pause.expire()] == ["ann"]
    assert pause.as_plain() == {"paused": False}
    assert len(changes) == 2


@pytest.mark.parametrize("asked", [{"for": "10m"}, [], {"lease": {"seconds": 0}}, {"lease": 600}])
def test_a_pause_that_cannot_be_read_changes_nothing(asked: object) -> None:
    pause = Pause(lambda: pytest.fail("it has changed"), EventLog(), MovedClock())
    with pytest.raises(ConfigError):
        pause.begin(asked)
    assert pause.lease is None
