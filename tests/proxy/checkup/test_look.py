# SPDX-License-Identifier: Apache-2.0
"""A look at an address: what it is, and what it tells."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.pki import Authority
from tests.fakes.servers import serving
from tests.fakes.told_broker import OF_A_CONTROLLER, told_broker
from weir.proxy.checkup.look import CLUSTER_ACTION, Seen, look
from weir.proxy.cluster.view import Broker
from weir.proxy.config.address import Address
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys
from weir.proxy.tls.live_keys import LiveKeys, TlsClient

BROKERS = {1: ("kafka1", 9092), 2: ("kafka2", 9092)}


async def test_look_broker_tells_who_it_is_and_what_its_cluster_has() -> None:
    async with told_broker(broker_id=2, brokers=BROKERS, topics=("orders",)) as broker:
        seen = await look(broker.address, None, {}, ["orders"])
    assert (seen.trouble, seen.broker_id, seen.not_told, seen.is_controller) == (None, 2, "", False)
    assert seen.brokers == {1: Broker("kafka1", 9092), 2: Broker("kafka2", 9092)}
    assert seen.missing == {}
    assert seen.operations is not None
    assert seen.operations >> CLUSTER_ACTION & 1


async def test_look_unknown_topic_comes_with_the_nearest_known_one() -> None:
    async with told_broker(brokers=BROKERS, topics=("orders", "payments")) as broker:
        seen = await look(broker.address, None, {}, ["orders", "ordres", "zzz"])
    assert seen.missing == {"ordres": "orders", "zzz": None}


async def test_look_without_describe_rights_is_not_told_who_answers() -> None:
    async with told_broker(brokers=BROKERS, may_describe=False, operations=frozenset()) as broker:
        seen = await look(broker.address, None, {})
    assert (seen.broker_id, seen.operations) == (None, None)
    assert "DescribeConfigs" in seen.not_told
    assert set(seen.brokers) == {1, 2}


async def test_look_broker_that_wants_authentication_says_so() -> None:
    async with told_broker(brokers=BROKERS, wants_authentication=True) as broker:
        seen = await look(broker.address, None, {})
    assert (seen.trouble, seen.brokers) == (None, {})
    assert "authenticated" in seen.not_told


async def test_look_controller_is_told_apart_from_a_broker() -> None:
    async with told_broker(apis=OF_A_CONTROLLER) as controller:
        assert (await look(controller.address, None, {})).is_controller


async def test_look_what_is_no_broker_says_what_is_wrong() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with serving(closes) as (server, port):
        assert (await look(Address("127.0.0.1", port), None, {})).trouble == "silent"
        server.close()
        assert (await look(Address("127.0.0.1", port), None, {})).trouble == "refused"
    assert (await look(Address("nowhere.invalid", 9092), None, {})).trouble == "unresolved"


async def in_tls(tmp_path: Path, trusted: Authority, name: str) -> Seen:
    """Look at a broker whose certificate is of `name`, as a route that expects TLS with kafka1."""
    issued = Authority(tmp_path / "own").issue(name) if trusted.folder != tmp_path else trusted.issue(name)
    server = load_server_keys(KeyFiles(certificate=issued.together), "none").context
    async with told_broker(tls=server, broker_id=1, brokers=BROKERS) as broker:
        return await look(broker.address, client(trusted), {})


def client(authority: Authority) -> TlsClient:
    files = KeyFiles(ca=authority.ca)
    keys = LiveKeys("ingress[0].upstream_tls", files, lambda: load_client_keys(files, checks_name=True))
    return TlsClient(keys, "kafka1")


async def test_look_in_tls_asks_as_the_route_does(tmp_path: Path) -> None:
    seen = await in_tls(tmp_path, Authority(tmp_path), "kafka1")
    assert (seen.trouble, seen.speaks_tls, seen.broker_id) == (None, True, 1)


async def test_look_certificate_that_does_not_fit_is_told(tmp_path: Path) -> None:
    seen = await in_tls(tmp_path, Authority(tmp_path), "kafka9")
    assert (seen.trouble, "kafka1" in seen.reason) == ("certificate", True)
    assert (await in_tls(tmp_path, Authority(tmp_path / "other"), "kafka1")).trouble == "certificate"


async def test_look_plaintext_where_tls_is_expected_and_the_reverse(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with told_broker(brokers=BROKERS) as broker:
        assert (await look(broker.address, client(authority), {})).trouble == "plaintext"
    server = load_server_keys(KeyFiles(certificate=authority.issue("kafka1").together), "none").context
    async with told_broker(tls=server) as broker:
        seen = await look(broker.address, None, {})
    assert (seen.trouble, seen.speaks_tls, dict(seen.apis)) == (None, True, {})
