# SPDX-License-Identifier: Apache-2.0
"""The interfaces by which other brokers are reached, and what they have carried."""

from __future__ import annotations

import json
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from weir.lab.hosts import Hosts, missing
from weir.proxy.config.load import parse_config
from weir.proxy.network import Interfaces

PROJECT = Path(__file__).parents[2]
CONFIG = parse_config('broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:1"\n')
ROUTE = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0
eth1 0000000A 00000000 0001 0 0 0 000000FF 0 0 0
eth2 0000010A 00000000 0001 0 0 9 0000FFFF 0 0 0
eth3 0000010A 00000000 0001 0 0 5 0000FFFF 0 0 0
"""
ROUTE6 = """fd000000000000000000000000000000 40 {0} 00 {0} 00000100 00000002 00000000 00000001 eth1
{0} 00 {0} 00 {0} 00000400 00000003 00000000 00000003 eth0
{0} 00 {0} 00 {0} ffffffff 00000001 00000000 00200200 lo
{1} 80 {0} 00 {0} 00000000 00000002 00000000 80200001 lo
""".format(32 * "0", 31 * "0" + "1")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "route").write_text(ROUTE)
    (tmp_path / "ipv6_route").write_text(ROUTE6)
    for number, name in enumerate(("lo", "eth0", "eth1", "eth2", "eth3"), start=1):
        folder = tmp_path / name / "statistics"
        folder.mkdir(parents=True)
        (folder / "rx_bytes").write_text(f"{number}\n")
        (folder / "tx_bytes").write_text(f"{number * 100}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("peers", "interfaces", "received"),
    [
        (["192.0.2.7"], ["eth0"], 2),
        (["10.7.0.1"], ["eth1"], 3),
        (["10.1.0.1"], ["eth3"], 5),  # of the lower metric
        (["10.7.0.1", "10.8.0.1", "192.0.2.7"], ["eth0", "eth1"], 5),
        (["fd00::7"], ["eth1"], 3),
        (["2001:db8::1"], ["eth0"], 2),
        (["::1"], None, 0),
        ([], None, 0),
    ],
)
def test_link_is_that_of_the_route_to_the_other_brokers(
    machine: Path, peers: list[str], interfaces: list[str] | None, received: int
) -> None:
    network = Interfaces(CONFIG, machine, machine)
    network.learn({1: frozenset({ip_address("198.51.100.1")}), 2: frozenset(map(ip_address, peers))})
    told = {"interfaces": interfaces, "received_bytes": received, "sent_bytes": 100 * received}
    assert network.status() == (None if interfaces is None else told)


def test_machine_that_tells_nothing_is_none(tmp_path: Path) -> None:
    network = Interfaces(CONFIG, tmp_path, tmp_path)
    network.learn({2: frozenset({ip_address("10.1.0.1")})})
    assert network.status() is None


COUNTS = """
import json, socket, sys
from ipaddress import ip_address
from pathlib import Path
from weir.proxy.config.load import parse_config
from weir.proxy.network import Interfaces
network = Interfaces(parse_config(sys.argv[1]))
network.learn({2: frozenset({ip_address(sys.argv[2])})})
before = network.status()
sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(100):
    sending.sendto(bytes(1000), (sys.argv[2], 9))
after = network.status()
print(json.dumps([after["interfaces"], after["sent_bytes"] - before["sent_bytes"]]))
"""


@pytest.mark.long
@pytest.mark.skipif(missing() is not None, reason=f"no hosts can be made here: {missing()}")
def test_kernel_counts_what_passes_no_sidecar() -> None:
    text = 'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:1"\n'
    with Hosts(2) as hosts:
        command = hosts.on(1, [sys.executable, "-c", COUNTS, text, hosts.address(2)])
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=30, check=True)
    interfaces, sent = json.loads(done.stdout)
    assert interfaces == ["eth0"]
    assert 100_000 < sent < 110_000  # with the headers
