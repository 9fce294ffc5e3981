# SPDX-License-Identifier: Apache-2.0
"""An egress that ends TLS in its peer's name: where that is not taken, TLS passes as it is, and replication goes on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast
from unittest.mock import Mock

import pytest

from tests.fakes.pki import Authority, Issued
from tests.fakes.relaying import Peer, Relaying, ScriptedThrottle, relaying, round_trip
from tests.proxy.tls.securing import BROKER, FOLLOWER, Keys, SecurePeer, secure_broker, secure_client
from weir.proxy.log import EventLog
from weir.proxy.relay import stand_in
from weir.proxy.relay.open_link import Relayed
from weir.proxy.relay.side import Side
from weir.proxy.relay.stand_in import FAILING_SECONDS, FAILURES, FIRST_PASS_SECONDS
from weir.proxy.relay.stats import RelayStats
from weir.proxy.tls.keys import load_client_keys, load_server_keys
from weir.proxy.tls.live_keys import LiveKeys, TlsServer
from weir.quota.throttle import Throttle

ON_BOTH_LOOPS = True
WITH_WORKERS = True


@pytest.fixture
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def standing_in(keys: Keys, issued: Issued) -> TlsServer:
    """The egress's end: what it shows is issued for the leader, or should be."""
    files = keys.files(issued)
    return TlsServer(LiveKeys("egress[0].tls", files, partial(load_server_keys, files, "required")), (FOLLOWER,))


@asynccontextmanager
async def refused(keys: Keys) -> AsyncIterator[Relaying]:
    """An egress whose certificate has another name than the leader's, and was refused as often as counts."""
    wrong = keys.authority.issue("somebody.test")
    async with relaying(2, tls=standing_in(keys, wrong), upstream_tls=keys.client(), stands_in=True) as relay:
        for number in range(FAILURES):
            relay.later += FAILING_SECONDS * (number == FAILURES - 1)
            with pytest.raises(ssl.SSLCertVerificationError):
                await secure_client(relay, keys, keys.follower)
        handshakes = relay.relay.tls.handshakes
        await relay.until(lambda: handshakes["leader", "client", "refused_by_peer"] == FAILURES)
        await relay.until(lambda: relay.log.of("tls_not_ended"))
        yield relay


async def through(relay: Relaying, keys: Keys) -> tuple[SecurePeer, SecurePeer]:
    """The follower and the leader, which have TLS with each other."""
    plain = await relay.client()
    context = load_client_keys(keys.files(keys.follower), checks_name=True).context
    wrapped = context.wrap_socket(plain.connection, server_hostname=BROKER, do_handshake_on_connect=False)
    follower = relay.keep(SecurePeer(wrapped))
    with pytest.raises(ssl.SSLWantReadError):
        wrapped.do_handshake()  # its first bytes, without which nothing is carried on
    accepted = await relay.accept()
    context = load_server_keys(keys.files(keys.broker), "required").context
    wrapped = context.wrap_socket(accepted.connection, server_side=True, do_handshake_on_connect=False)
    leader = relay.keep(SecurePeer(wrapped))
    await asyncio.gather(follower.shake_hands(), leader.shake_hands())
    return follower, leader


async def test_tls_passes_as_it_is_where_follower_refuses_certificate(keys: Keys) -> None:
    async with refused(keys) as relay:
        follower, leader = await through(relay, keys)
        await round_trip(follower, leader, 1)
        certificate = leader.connection.getpeercert()
        assert certificate is not None
        assert certificate["subject"] == ((("commonName", FOLLOWER),),), "nobody stands between them"
        assert relay.stats.passthrough == {"tls": 1}


@pytest.mark.long
async def test_tls_is_tried_again_within_seconds_then_passes_longer(keys: Keys) -> None:
    """What passes is broken for that: else it would be for its whole life."""
    async with refused(keys) as relay:
        follower, leader = await through(relay, keys)
        await round_trip(follower, leader, 1)
        begin = asyncio.get_running_loop().time()
        with contextlib.suppress(OSError):
            assert await follower.receive(1) == b""
        assert asyncio.get_running_loop().time() - begin <= FIRST_PASS_SECONDS + 1.0
        for number in range(FAILURES):
            with pytest.raises(ssl.SSLCertVerificationError):
                await secure_client(relay, keys, keys.follower)
            await relay.until(
                lambda: relay.relay.tls.handshakes["leader", "client", "refused_by_peer"] == FAILURES + number + 1  # noqa: B023
            )
            await relay.until(lambda: not relay.stats.connections)
        follower, leader = await through(relay, keys)
        await round_trip(follower, leader, 1)
        await asyncio.sleep(FIRST_PASS_SECONDS + 0.2)
        await round_trip(follower, leader, 2)


@pytest.mark.long
async def test_what_passes_due_to_strangers_is_soon_throttled_again(keys: Keys) -> None:
    """Strangers fail for as long as no follower is there; its first connection passes for a second."""
    async with relaying(2, tls=standing_in(keys, keys.broker), upstream_tls=keys.client(), stands_in=True) as relay:
        await strangers_fail(relay, keys, after=FAILING_SECONDS)
        await relay.until(lambda: relay.log.of("tls_not_ended"))
        follower, leader = await through(relay, keys)
        await round_trip(follower, leader, 1)
        with contextlib.suppress(OSError):
            assert await follower.receive(1) == b""
        await ended_here(relay, keys)
        await strangers_fail(relay, keys, after=FAILING_SECONDS)
        await ended_here(relay, keys)


async def test_a_few_strangers_decide_nothing(keys: Keys) -> None:
    """Before a follower has come, too."""
    async with relaying(2, tls=standing_in(keys, keys.broker), upstream_tls=keys.client(), stands_in=True) as relay:
        await strangers_fail(relay, keys, after=0.0)
        await ended_here(relay, keys)
        assert relay.log.of("tls_not_ended") == []
        assert relay.stats.passthrough == {}


async def strangers_fail(relay: Relaying, keys: Keys, after: float) -> None:
    """Three handshakes of who has a certificate with another name, the last one `after` so many seconds."""
    handshakes = relay.relay.tls.handshakes
    before = handshakes["leader", "client", "wrong_name"]
    for number in range(1, FAILURES + 1):
        relay.later += after * (number == FAILURES)
        stranger = await secure_client(relay, keys, keys.authority.issue("a-client.test"))
        await relay.until(lambda: handshakes["leader", "client", "wrong_name"] == before + number)  # noqa: B023
        stranger.close()


async def test_new_keys_are_tried_at_once(keys: Keys) -> None:
    """What passes as it is has to come back for that."""
    async with refused(keys) as relay:
        assert relay.listener.tls is not None and relay.listener.stand_ins is not None
        follower, leader = await through(relay, keys)
        await round_trip(follower, leader, 1)
        relay.listener.stand_ins.try_again()
        await round_trip(follower, leader, 2)  # the keys are the old ones
        relay.listener.tls.keys.keys = standing_in(keys, keys.broker).keys.keys
        relay.listener.stand_ins.try_again()
        with contextlib.suppress(OSError):
            assert await follower.receive(1) == b""
        follower, leader = await ended_here(relay, keys)
        relay.listener.stand_ins.try_again()
        await round_trip(follower, leader, 2)
        assert relay.stats.passthrough == {"tls": 1}


async def test_who_speaks_no_tls_is_refused_all_the_same(keys: Keys) -> None:
    async with refused(keys) as relay:
        client: Peer = await relay.client()
        await client.send(b"\0\0\0\x10")
        await client.expect_end()
        assert relay.relay.tls.handshakes["leader", "client", "not_tls"] == 1


async def test_leader_refusing_the_certificate_after_handshake_counts(keys: Keys) -> None:
    """As in TLS 1.3."""
    unknown = Authority(keys.authority.folder / "other", "other-ca").issue(FOLLOWER)
    client = keys.client(unknown)
    async with relaying(2, tls=standing_in(keys, keys.broker), upstream_tls=client, stands_in=True) as relay:
        for number in range(FAILURES):
            relay.later += FAILING_SECONDS * (number == FAILURES - 1)
            follower = await secure_client(relay, keys, keys.follower)
            with pytest.raises(ssl.SSLError):
                await secure_broker(relay, keys)
            await relay.until(lambda: not relay.stats.connections)
            follower.close()
        assert relay.stats.protocol_errors["tls"] == FAILURES
        await round_trip(*await through(relay, keys), 1)


async def test_strangers_change_nothing_while_the_follower_has_tls(keys: Keys) -> None:
    server, client = standing_in(keys, keys.broker), keys.client()
    async with relaying(2, tls=server, upstream_tls=client, stands_in=True) as relay:
        follower, leader = await ended_here(relay, keys)
        for number in range(FAILURES + 1):
            stranger = await secure_client(relay, keys, keys.authority.issue("a-client.test"))
            stranger.close()
            await relay.until(lambda: relay.relay.tls.handshakes["leader", "client", "wrong_name"] > number)  # noqa: B023
        assert relay.log.of("tls_not_ended") == []
        await round_trip(follower, leader, 2)
        await ended_here(relay, keys)


def test_failures_at_one_upstream_decide_nothing_at_another(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "FAILING_SECONDS", 0.0)
    side = Side(cast(Throttle, ScriptedThrottle()), RelayStats("leader"), EventLog("tests.stand_in"))
    trials = stand_in.StandIns(standing_in(keys, keys.broker), keys.client(), side)
    works = Mock(upstream_name="b:9092", relayed=Relayed(1, 1), connection=Mock(opaque_reason=None))
    trials.links.add(works)
    for upstream in ("a:9092", "b:9092"):
        for _ in range(FAILURES):
            trials.failed(upstream, "10.0.0.2")
    failing = [key for key, client in trials._failing.items() if client.passes]
    assert failing == [("a:9092", "10.0.0.2")], "b has a connection that works, and a has none"
    assert not trials.lets_pass("b:9092", "10.0.0.2")
    assert not trials.lets_pass("a:9092", "10.0.0.3")


async def ended_here(relay: Relaying, keys: Keys) -> tuple[SecurePeer, SecurePeer]:
    """A round trip on a new connection on which TLS is ended, and begun again."""
    done = relay.relay.tls.handshakes["leader", "client", "ok"]
    follower = await secure_client(relay, keys, keys.follower)
    leader = await secure_broker(relay, keys)
    await round_trip(follower, leader, 1)
    assert relay.relay.tls.handshakes["leader", "client", "ok"] == done + 1
    return follower, leader
