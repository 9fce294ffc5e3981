# SPDX-License-Identifier: Apache-2.0
"""Whose fetches are a replica's: by configured networks, or by what the cluster tells of its brokers."""

import asyncio
import socket

import pytest

from tests.fakes.clock import MovedClock
from weir.proxy.cluster.view import Broker
from weir.proxy.cluster_news import BrokerAddresses
from weir.proxy.config.address import IPAddress, Network, numeric_address
from weir.proxy.relay.replica_sources import SEEN_SECONDS, Addresses, ReplicaSources


def addresses(*texts: str) -> frozenset[IPAddress]:
    return frozenset(address for text in texts if (address := numeric_address(text)) is not None)


def sources(clock: MovedClock | None = None, **brokers: str) -> ReplicaSources:
    """By what a cluster told: broker b1 is at ..., with `-` no name was resolved."""
    made = ReplicaSources(None, clock or MovedClock())
    made.learn({int(name[1:]): addresses(*text.split()) for name, text in brokers.items()})
    return made


@pytest.mark.parametrize(
    ("host", "is_replica"),
    [
        ("10.1.2.3", True),
        ("11.1.2.3", False),
        ("192.168.0.7", True),
        ("192.168.0.8", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:11.1.2.3", False),
        ("fd00::1", True),
        ("fd01::1", False),
        ("fd00::1%eth0", True),
        ("172.16.5.5", True),
        ("127.0.0.1", False),
    ],
)
def test_networks_configured_admit_who_is_in_one_of_them(host: str, is_replica: bool) -> None:
    networks = ["10.0.0.0/8", "192.168.0.7", "fd00::/16", "::ffff:172.16.0.0/108"]
    made = ReplicaSources([Network.parse(text) for text in networks], MovedClock())
    made.learn({2: addresses("11.1.2.3")})  # what the cluster tells does not count then
    assert (made.standing(host, 2) == "replica") is is_replica
    assert made.standing(host, 2) != "stranger"


def test_anyone_is_a_replica_until_the_brokers_are_known() -> None:
    """This is where no networks are configured."""
    assert ReplicaSources(None, MovedClock()).standing("10.0.0.9", 99) == "replica"


def test_who_claims_to_be_a_broker_seen_elsewhere_is_a_stranger() -> None:
    """The broker fetches from its own address meanwhile."""
    clock = MovedClock()
    made = sources(clock, b1="10.0.0.1", b2="10.0.0.2 fd00::2")
    assert made.standing("10.0.0.9", 2) == "replica"  # its address may be translated on the way
    assert made.standing("fd00::2", 2) == "replica"
    assert made.standing("10.0.0.9", 2) == "stranger"
    assert made.standing("10.0.0.9", 1) == "replica"
    clock.move(SEEN_SECONDS - 1)
    assert made.standing("10.0.0.9", 2) == "stranger"
    clock.move(2)
    assert made.standing("10.0.0.9", 2) == "replica"


def test_broker_at_a_new_address_is_a_stranger_until_named() -> None:
    """It is a replica again once its name leads there."""
    made = sources(b1="10.0.0.1", b2="10.0.0.2")
    assert made.standing("10.0.0.2", 2) == "replica"
    assert made.standing("10.0.0.22", 2) == "stranger"
    made.learn({1: addresses("10.0.0.1"), 2: addresses("10.0.0.22")})
    assert made.standing("10.0.0.22", 2) == "replica"


def test_id_of_no_broker_is_a_stranger_until_there_is_one() -> None:
    made = sources(b1="10.0.0.1")
    assert made.standing("10.0.0.9", 77) == "stranger"
    assert made.standing("10.0.0.1", 77) == "replica"  # a broker's machine is trusted with any id
    made.learn({1: addresses("10.0.0.1"), 77: addresses("10.0.0.77")})
    assert made.standing("10.0.0.9", 77) == "replica"


def test_all_of_loopback_is_one_place() -> None:
    made = sources(b1="127.0.0.1", b2="127.0.1.2")
    assert made.standing("127.0.0.1", 2) == "replica"
    assert made.standing("127.3.3.3", 2) == "replica"


def test_broker_named_loopback_here_is_admitted_from_elsewhere() -> None:
    """With an egress listener the peers' names lead to loopback on this machine, and not where they fetch from."""
    made = sources(b1="10.0.0.1", b2="127.0.1.2", b3="-")
    for _ in range(3):
        assert made.standing("10.0.0.2", 2) == "replica"
        assert made.standing("10.0.0.3", 3) == "replica"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("10.0.0.1/8", "has bits behind its prefix: write 10.0.0.0/8, not '10.0.0.1/8'"),
        ("kafka1", "must be a network such as 10.0.0.0/8, or an IP address, not 'kafka1'"),
        ("10.0.0.0/33", "must be a network such as 10.0.0.0/8, or an IP address, not '10.0.0.0/33'"),
    ],
)
def test_a_network_of_another_form_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + sentence.replace("(", r"\(")):
        Network.parse(text)


class Names:
    """What names mean, and how often they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
        self.known = known
        self.asked: list[str] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.resolve)

    async def resolve(self, host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(None, None, None, "", (self.known[host], 0))]


def brokers(**hosts: str) -> dict[int, Broker]:
    return {int(broker_id[1:]): Broker(host, 9092) for broker_id, host in hosts.items()}


async def learn(resolver: BrokerAddresses, brokers: dict[int, Broker]) -> None:
    resolver.offer(brokers)
    assert resolver._resolving is not None
    await resolver._resolving


async def test_brokers_names_are_resolved_and_what_was_known_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Addresses] = []
    names = Names(monkeypatch, kafka2="10.0.0.2", kafka3="::ffff:10.0.0.3")
    resolver = BrokerAddresses(told.append)
    await learn(resolver, brokers(_1="10.0.0.1", _2="kafka2", _3="kafka3", _4="nobody"))
    known = {1: addresses("10.0.0.1"), 2: addresses("10.0.0.2"), 3: addresses("10.0.0.3"), 4: frozenset[IPAddress]()}
    assert told == [known]
    assert names.asked == ["kafka2", "kafka3", "nobody"]
    names.known = {"kafka2": "10.0.0.22"}
    await learn(resolver, brokers(_2="kafka2", _3="kafka3"))
    assert told[1] == {**known, 2: addresses("10.0.0.22")}
    await resolver.close()


async def test_brokers_offered_while_resolving_wait_for_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Addresses] = []
    names = Names(monkeypatch, kafka2="10.0.0.2")
    resolver = BrokerAddresses(told.append)
    resolver.offer(brokers(_2="kafka2"))
    resolver.offer(brokers(_2="kafka2"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await resolver.close()
    assert names.asked == ["kafka2"]
    await BrokerAddresses(told.append).close()
