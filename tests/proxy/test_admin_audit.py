# SPDX-License-Identifier: Apache-2.0
"""The log's lines of changes over HTTP: who made which, from where, for how long and why."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.clock import MovedClock
from tests.proxy.administered import Client, Sidecar
from tests.proxy.test_admin_access import READ
from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.proxy.admin.access import Access
from weir.proxy.admin.http import AdminServer
from weir.proxy.admin.tokens import tokens_in
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Admin
from weir.proxy.log import EventLog

LEASE = {"seconds": 7200, "owner": "ann", "reason": "adding broker 4"}
OF_LEASE = {"lease_seconds": 7200, "lease_owner": "ann", "lease_reason": "adding broker 4"}


def last_line(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in reversed(caplog.records) if one.msg == event).__dict__["weir_fields"]
    return found


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def test_change_of_the_throttle_is_logged_whole(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    quota = {"name": "zones", "side": "leader", "rate": 9, "peers": [3], "mode": "enforce", "kept_at": "here"}
    assert (await client.call("PATCH", "/v1/throttle", {LEADER_RATE: 7, "quotas": [quota], "lease": LEASE}))[0] == 200
    line = last_line(caplog, "throttle_changed")
    changed = dict(part.split(": none -> ") for part in line.pop("changed").split("; ") if ": none -> " in part)
    assert json.loads(changed["quotas.zones"]) == quota
    assert line == {
        **{"by": "http", "method": "PATCH", "client": "127.0.0.1", "user": "anonymous"},
        **OF_LEASE,
        **{"leader_rate": 7, "leader_rate_before": 5000000, "topics": 1, "topics_before": 1},
        **{"follower_rate": 6000000, "follower_rate_before": 6000000},
    }
    await client.call("DELETE", "/v1/throttle")
    line = last_line(caplog, "throttle_changed")
    assert (line["method"], line["lease_seconds"]) == ("DELETE", "none")
    assert "lease_owner" not in line


async def test_change_of_limits_is_logged_in_json(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    entry = {"client_id": "mine", "record.rate.limit": 5, "exempt.topics": ["a", "b*"]}
    assert (await client.call("PUT", "/v1/limits", {"client": [entry], "lease": LEASE}))[0] == 200
    line = last_line(caplog, "limits_changed")
    assert line["changed"] == 'mine (task): none -> exempt.topics=["a","b*"] record.rate.limit=5'
    assert OF_LEASE.items() <= line.items()


async def test_pause_is_logged_with_its_lease(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    await client.call("POST", "/v1/capture/pause", {"lease": LEASE})
    assert {**OF_LEASE, "paused": True}.items() <= last_line(caplog, "capture_paused").items()
    await client.call("POST", "/v1/capture/resume")
    assert {"lease_seconds": "none", "paused": False}.items() <= last_line(caplog, "capture_resumed").items()


async def test_line_of_a_large_change_is_short(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    replicas = ",".join(f"{number}:1" for number in range(100_000))
    topics = {f"t{number}": {LEADER_REPLICAS: replicas if not number else "*"} for number in range(100)}
    assert (await client.call("PATCH", "/v1/throttle", {"topics": topics}))[0] == 200
    assert len(last_line(caplog, "throttle_changed")["changed"]) < 5_000


async def test_log_names_whose_token_made_a_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "read").write_text(READ)
    (tmp_path / "write").write_text("ann: ann-ann-ann-ann-1\nrobot.1@ci:  robot-robot-robot\n\n")
    admin = Admin(read_token_file=str(tmp_path / "read"), write_token_file=str(tmp_path / "write"))
    server = AdminServer(Sidecar(), EventLog(), Access(admin, MovedClock()))
    address = await server.start(Address("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session:
        for token, user in (("ann-ann-ann-ann-1", "ann"), ("robot-robot-robot", "robot.1@ci")):
            headers = {"Authorization": f"Bearer {token}"}
            async with session.patch(f"http://{address}/v1/throttle", json={}, headers=headers) as response:
                assert response.status == 200
            assert last_line(caplog, "throttle_changed")["user"] == user
    await server.stop()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"0123456789abcdef", {"token": "0123456789abcdef"}),
        (b"\n  0123456789abcdef \r\n\n", {"token": "0123456789abcdef"}),
        (b"with:colon:0123456789abcdef", {"token": "with:colon:0123456789abcdef"}),
        (b"ann: 0123456789abcdef", {"ann": "0123456789abcdef"}),
        (b"ann: 0123456789abcdef\nbob:\t0123456789abcdee\n", {"ann": "0123456789abcdef", "bob": "0123456789abcdee"}),
        (b"ann: short\nbob: 0123456789abcdee", {}),
        (b"0123456789abcdef\n0123456789abcdee", {}),
        (b"ann: 0123456789abcdef\n0123456789abcdee", {}),
        (b"an n: 0123456789abcdef", {}),
        (b"ann: 0123456789 abcdef", {}),
        (b": 0123456789abcdef", {}),
        (b"ann: \xff123456789abcdef", {}),
        (b"", {}),
    ],
)
def test_token_file_has_a_token_or_lines_with_names(content: bytes, expected: dict[str, str]) -> None:
    """A file with a wrong line has none: nobody is let in by half of it."""
    assert {token.owner: token.secret.decode() for token in tokens_in(content)} == expected
