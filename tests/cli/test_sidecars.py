# SPDX-License-Identifier: Apache-2.0
"""The commands that talk to running sidecars: what they send and print, and whom they blame when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import GOOD, SIDE, STATUS, THROTTLE, Admin, config, failing
from tests.proxy.page.made_up import limited
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.cli.main import main
from weir.cli.sidecars import _why
from weir.proxy.config.address import Address

# status


def test_status_is_a_table_of_sides(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["status", "--admin", admin.address]) == 0
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if " leader " in line)
    assert row == [admin.address, "1", "leader", "5", "MB/s", "4.9", "MB/s", "1", "1", "12", "345", "6.8", "no"]
    assert f"{admin.address} is not ready: upstream 127.0.0.1:1 cannot be reached." in out


def test_status_has_a_table_of_limited_clients(capsys: pytest.CaptureFixture[str], admins: list[Admin]) -> None:
    """Whoever connects chooses the client id: a terminal gets no control character of it."""
    several = {"record.batch.rate.limit": 5.0, "byte.rate.limit": 2e6, "office.limit": 3.0}
    clients = [
        limited("connector-consumer-s3-0"),
        limited("\x1b[2Jjdbc-1", 3000.0, share=0.25, shares_with=["a", "b"], shares_with_more=7, group="sink:jdbc"),
        limited("x" * 255, None, throttled_ratio=0.0),
        limited("", limits=several),
    ]
    told = {**STATUS, "limits": {"clients": clients, "more": 1234}}
    admins[0].answers["/v1/status"] = (200, json.dumps(told).encode())
    assert main(["status", "--admin", admins[0].address, "--admin", admins[1].address]) == 0
    out = capsys.readouterr().out
    begin = out.splitlines().index(next(line for line in out.splitlines() if "limited client" in line))
    rows = [" ".join(line.split()) for line in out.splitlines()[begin + 2 : begin + 6]]
    assert rows == [
        "1 connector-consumer-s3-0 998 1,000 87% -",
        r"1 \x1b[2Jjdbc-1 998 3,000 (25% here) 87% 9 of sink:jdbc",
        f"1 {'x' * 60}… 998 none 0% -",
        "1 (no id) 998 5 batches/s, 2 MB/s, office.limit 3 87% -",
    ]
    assert "1,234 more limited clients are not shown: they wait less than these.\n" in out
    assert "\x1b" not in out
    admins[0].answers["/v1/status"] = (200, json.dumps({**told, "limits": {"clients": [{}], "more": 0}}).encode())
    assert main(["status", "--admin", admins[0].address, "--admin", admins[1].address]) == 1


def test_status_tells_upstreams_down_and_routes_without_a_link(
    capsys: pytest.CaptureFixture[str], admin: Admin
) -> None:
    """A minute without a link is told; ten seconds are those of a broker that restarts."""
    egress = {"listen": "127.0.1.2:9092", "upstream": "10.0.0.2:9092", "peer": 2}
    routes = [
        {**egress, "links": 0, "no_link_for_seconds": 60.0, "upstream_up": True, "upstream_failure": None},
        {**egress, "links": 0, "no_link_for_seconds": 10.0, "upstream_up": True, "upstream_failure": None},
        {**egress, "links": 0, "no_link_for_seconds": 60.0, "upstream_up": False, "upstream_failure": "it is away"},
        {"listen": ":1", "upstream": "captured", "links": 3, "no_link_for_seconds": 0.0},
    ]
    admin.answers["/v1/status"] = (200, json.dumps({**STATUS, "routes": routes}).encode())
    assert main(["status", "--admin", admin.address]) == 0
    way = "the route 127.0.1.2:9092 -> 10.0.0.2:9092, peer 2"
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"{admin.address}: no link is open on {way}, for 60 s: nothing comes this way.",
        f"{admin.address}: it is away ({way}).",
    ]


def test_status_says_what_passes_unthrottled(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    passing = {"catch_up_bytes_in_ten_minutes": 133_000_000, "opaque_connections": {"tls": 2, "sasl": 1}}
    leader = {**SIDE, "not_throttled": passing, "passthrough": {"tls": 9, "not_a_replica": 1, "fetch_version": 41}}
    quiet = {"catch_up_bytes_in_ten_minutes": 0, "opaque_connections": {}}
    told = {**STATUS, "topic_ids_unknown": 2, "sides": {"leader": leader, "follower": {**SIDE, "not_throttled": quiet}}}
    admin.answers["/v1/status"] = (200, json.dumps(told).encode())
    assert main(["status", "--admin", admin.address]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("Broker")] == [
        "Broker 1, leader side: beside the throttle 133 MB of replicas that are behind passed unthrottled in the last"
        " ten minutes; `weir throttle show` tells what is throttled.",
        "Broker 1, leader side: 3 open connections are not decoded, and not throttled (sasl 1, tls 2).",
        "Broker 1, leader side: undecoded since the start, and not throttled: fetch_version 41.",
        "Broker 1: 2 topic ids have no name that is known, so any list or pattern of topics throttles them.",
    ]


def test_status_without_limits_has_no_table_of_them(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["status", "--admin", admin.address]) == 0
    assert "limited" not in capsys.readouterr().out


def test_status_json_has_an_entry_for_each_sidecar(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], nobody: str
) -> None:
    first, second = (server.address for server in admins)
    assert main(["status", "--json", "--admin", first, "--admin", nobody, "--admin", second]) == 1
    captured = capsys.readouterr()
    entries = json.loads(captured.out)
    assert [entry["admin"] for entry in entries] == [first, nobody, second]
    assert entries[0]["status"] == entries[2]["status"] == STATUS
    assert captured.err == f"weir: no sidecar answers at {nobody}: Connection refused.\n"
    assert entries[1] == {"admin": nobody, "error": f"no sidecar answers at {nobody}: Connection refused"}


def test_status_admin_address_may_come_from_the_configuration(
    capsys: pytest.CaptureFixture[str], admin: Admin, tmp_path: Path
) -> None:
    """A wildcard is an address to listen on; 127.0.0.1 is where it is reached."""
    port = admin.address.partition(":")[2]
    file = config(tmp_path, f'{GOOD}\n[admin]\nlisten = "0.0.0.0:{port}"\nwithout_tokens = true')
    assert main(["status", "--json", "--config", file]) == 0
    assert json.loads(capsys.readouterr().out)[0]["admin"] == admin.address


@pytest.mark.long
@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (500, b"{}"),
        (200, b"\xff"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b"null"),
        (200, b'{"sides": {"leader": {}}}'),
        (200, b'{"sides": {}, "topics": {}}'),
    ],
)
@pytest.mark.parametrize("command", [("status",), ("throttle", "show")])
def test_answer_of_what_is_no_sidecar_fails_with_a_sentence(
    capsys: pytest.CaptureFixture[str], admin: Admin, answer: tuple[int, bytes], command: tuple[str, ...]
) -> None:
    admin.answers = dict.fromkeys(("/v1/status", "/v1/throttle"), answer)
    status, error = failing(capsys, *command, "--admin", admin.address)
    assert status == 1
    assert admin.address in error


def test_status_shows_the_others_when_one_is_no_sidecar(
    capsys: pytest.CaptureFixture[str], admins: list[Admin]
) -> None:
    admins[0].answers["/v1/status"] = (200, b"{}")
    assert main(["status", "--admin", admins[0].address, "--admin", admins[1].address]) == 1
    captured = capsys.readouterr()
    assert admins[1].address in captured.out
    assert captured.err == (
        f"weir: what answers at {admins[0].address} is not a sidecar of this version: its answer has another form.\n"
    )


# throttle


def test_throttle_show_is_a_table_with_sources(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["throttle", "show", "--admin", admin.address]) == 0
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines() if admin.address in line]
    assert rows == [
        [admin.address, LEADER_RATE, "5000000", "bytes/s", "(5", "MB/s)", "file"],
        [admin.address, FOLLOWER_RATE, "none"],
        [admin.address, "orders:", LEADER_REPLICAS, "*", "http"],
    ]
    assert captured.err == ""


@pytest.mark.parametrize("topics", [{}, {"orders": {FOLLOWER_REPLICAS: "*"}}])
def test_throttle_rate_without_a_replica_is_noted(
    capsys: pytest.CaptureFixture[str], admin: Admin, topics: dict[str, Any]
) -> None:
    admin.answers["/v1/throttle"] = (200, json.dumps({LEADER_RATE: 5, "topics": topics, "sources": {}}).encode())
    assert main(["throttle", "set", "--leader-rate", "5", "--admin", admin.address]) == 0
    said = f"{LEADER_RATE} is set, but no topic lists {LEADER_REPLICAS}: nothing is throttled by it."
    assert capsys.readouterr().err == f"note: {admin.address}: {said}\n"


def test_throttle_show_json_is_what_the_sidecar_shows(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["throttle", "show", "--json", "--admin", admin.address]) == 0
    assert json.loads(capsys.readouterr().out) == [{"admin": admin.address, "throttle": THROTTLE}]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "change"),
    [
        (["--leader-rate", "5MB"], {LEADER_RATE: 5_000_000}),
        (["--leader-rate", "0", "--follower-rate", "500k"], {LEADER_RATE: 0, FOLLOWER_RATE: 500_000}),
        (["--follower-rate", "none"], {FOLLOWER_RATE: None}),
        (
            ["--topic", "orders", "--leader-replicas", "*", "--follower-replicas", "0:2"],
            {"topics": {"orders": {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:2"}}},
        ),
        (
            ["--topic", "a", "--topic", "b", "--leader-replicas", "1:2, 0:1"],
            {"topics": {"a": {LEADER_REPLICAS: "0:1,1:2"}, "b": {LEADER_REPLICAS: "0:1,1:2"}}},
        ),
        (["--topic", "a", "--leader-replicas", "none"], {"topics": {"a": {LEADER_REPLICAS: None}}}),
        (
            ["--set", "leader.recovery.throttled.rate=50MB", "--set", "mode=observe", "--set", "under.min.isr=none"],
            {"leader.recovery.throttled.rate": 50_000_000, "mode": "observe", "under.min.isr": None},
        ),
        (
            ["--leader-rate", "5MB", "--for", "2h", "--owner", "ann", "--reason", "a move"],
            {LEADER_RATE: 5_000_000, "lease": {"seconds": 7200, "owner": "ann", "reason": "a move"}},
        ),
    ],
)
def test_throttle_set_sends_what_is_named_to_every_sidecar(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], options: list[str], change: dict[str, Any]
) -> None:
    addresses = [word for server in admins for word in ("--admin", server.address)]
    assert main(["throttle", "set", *options, *addresses]) == 0
    assert [server.requests for server in admins] == [[("PATCH", "/v1/throttle", change)]] * 2
    assert "5000000 bytes/s (5 MB/s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "nothing to set"),
        (["--set", "leader.recovery.throttled.rate"], "give it as NAME=VALUE"),
        (["--set", "leader.recovery.rate=5MB"], "leader.recovery.throttled.rate"),
        (["--set", "leader.recovery.throttled.rate=fast"], "'fast' is not a rate"),
        (["--leader-rate", "5MB", "--for", "soon"], "--for: 'soon' is not a time"),
        (["--leader-rate", "5MB", "--reason", "a move"], "--for is missing"),
        (["--leader-rate", "5 parsecs"], "--leader-rate: '5 parsecs' is not a rate"),
        (["--leader-rate", "0.5"], "whole number"),
        (["--topic", "orders"], "--leader-replicas or --follower-replicas is missing"),
        (["--leader-replicas", "*"], "--topic is missing"),
        (["--topic", "a", "--leader-replicas", "0:x"], "--leader-replicas: '0:x'"),
    ],
)
def test_throttle_set_bad_value_is_refused_and_no_sidecar_asked(
    capsys: pytest.CaptureFixture[str], admin: Admin, options: list[str], sentence: str
) -> None:
    status, error = failing(capsys, "throttle", "set", *options, "--admin", admin.address)
    assert status == 2
    assert sentence in error
    assert admin.requests == []


def test_throttle_set_refused_by_the_sidecar_says_its_reason(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    admin.answers["/v1/throttle"] = (400, b'{"error": "topics.a b: is no name.", "field": "topics.a b"}')
    arguments = ["throttle", "set", "--topic", "a b", "--leader-replicas", "*", "--admin", admin.address]
    assert failing(capsys, *arguments) == (2, f"the sidecar at {admin.address} refused: topics.a b: is no name.")


def test_throttle_set_reaches_others_when_one_does_not_answer(
    capsys: pytest.CaptureFixture[str], admin: Admin, nobody: str
) -> None:
    assert main(["throttle", "set", "--leader-rate", "1", "--admin", nobody, "--admin", admin.address]) == 1
    assert len(admin.requests) == 1
    captured = capsys.readouterr()
    assert admin.address in captured.out
    assert captured.err == f"weir: no sidecar answers at {nobody}: Connection refused.\n"


def test_throttle_clear_removes_all_or_the_topics_named(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    assert main(["throttle", "clear", "--admin", admin.address]) == 0
    assert main(["throttle", "clear", "--all", "--admin", admin.address]) == 0
    assert main(["throttle", "clear", "--topic", "orders", "--admin", admin.address]) == 0
    assert admin.requests == [
        ("DELETE", "/v1/throttle?source=http", None),
        ("DELETE", "/v1/throttle", None),
        ("PATCH", "/v1/throttle", {"topics": {"orders": None}}),
    ]


def test_words_of_somebody_else_do_not_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    """A lease's reason that would clear the screen and set its title, and one that hides what follows."""
    lease = {"expires_in_seconds": 3600, "owner": "ann\x1b]0;mine\x07", "reason": "\x1b[2J\u202egnirts\x9b2J"}
    layer = {"source": "http", "parts": [{"part": LEADER_RATE, "value": 5, **lease}]}
    told = {LEADER_RATE: 5, "topics": {}, "sources": {LEADER_RATE: "http"}, "layers": [layer]}
    admin.answers["/v1/throttle"] = 200, json.dumps(told).encode()
    assert main(["throttle", "show", "--admin", admin.address]) == 0
    shown = capsys.readouterr().out
    assert r"ann\x1b]0;mine\x07: \x1b[2J\u202egnirts\x9b2J" in shown
    admin.answers["/v1/throttle"] = 400, json.dumps({"error": "no \x1b[2J"}).encode()
    assert failing(capsys, "throttle", "show", "--admin", admin.address)[1].endswith(r"refused: no \x1b[2J.")


@pytest.mark.parametrize("other", ["--stale", "--topic=orders"])
def test_throttle_clear_refuses_all_beside_a_part(capsys: pytest.CaptureFixture[str], other: str) -> None:
    code, error = failing(capsys, "throttle", "clear", "--all", other)
    assert (code, error) == (2, f"--all cannot be given with {other.partition('=')[0]}.")


def test_throttle_show_tells_what_a_removal_of_all_hides(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    removed = {"source": "http", "parts": [{"part": "*", "removed": True}]}
    hidden = [{"source": one, "parts": [{"part": LEADER_RATE, "value": 5}]} for one in ("file", "kafka")]
    told = {"topics": {}, "sources": {}, "layers": [*hidden, removed]}
    admin.answers["/v1/throttle"] = 200, json.dumps(told).encode()
    assert main(["throttle", "show", "--admin", admin.address]) == 0
    assert capsys.readouterr().err == (
        f"note: {admin.address}: all that was set otherwise was removed until a restart or reload, and that hides the"
        " file's throttle and Kafka's own throttle. `weir throttle clear` ends this.\n"
    )


def test_throttle_show_tells_standing_rates_quotas_and_leases(capsys: pytest.CaptureFixture[str], admin: Admin) -> None:
    """Of a lease it tells what is left of it, and whose it is."""
    quota = {"name": "zones", "side": "leader", "rate": 20_000_000, "racks": ["b", "c"], "mode": "observe"}
    kept = {"name": "into", "side": "follower", "rate": 9_000_000, "peers": [4], "kept_at": "leaders"}
    lease = {"expires_in_seconds": 3600, "owner": "ann", "reason": "adding broker 4"}
    table = {
        "leader.recovery.throttled.rate": 50_000_000,
        "mode": "enforce",
        "quotas": [quota, kept],
        "topics": {},
        "sources": {"leader.recovery.throttled.rate": "http", "mode": "file", "quotas.zones": "file"},
        "layers": [{"source": "http", "parts": [{"part": "leader.recovery.throttled.rate", "value": 1, **lease}]}],
    }
    admin.answers["/v1/throttle"] = (200, json.dumps(table).encode())
    assert main(["throttle", "show", "--admin", admin.address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "leader.recovery.throttled.rate 50000000 bytes/s (50 MB/s) http, 1 h left, ann: adding broker 4" in shown
    assert "quota zones 20000000 bytes/s (20 MB/s) on the leader's side, racks b, c, only observed file" in shown
    assert "quota into 9000000 bytes/s (9 MB/s) for each follower, kept by its leaders, peers 4" in shown


def test_refusal_by_another_machine_tells_where_sidecars_listen() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    assert "[admin] listen" in _why(Address("10.0.0.1", 9690), refused)
    assert _why(Address("127.0.0.1", 9690), refused) == ""
    assert _why(Address("10.0.0.1", 9690), OSError(113, "No route to host")) == ""
