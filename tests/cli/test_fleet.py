# SPDX-License-Identifier: Apache-2.0
"""The commands with `--bootstrap-server`: a made-up cluster, and stand-ins for its sidecars."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import THROTTLE, Admin, failing
from tests.cli.made_up_cluster import CLUSTER, MadeUpCluster, say
from tests.proxy.page.made_up import MOVING, lag, late, limited, quota, side, waiting
from tests.proxy.page.made_up import status as made_up_status
from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.cli import cluster as connecting
from weir.cli import many, throttle
from weir.cli.main import main
from weir.control import move_admin, reachable
from weir.control.cluster_admin import Partition, Reassignment
from weir.control.errors import ControlError


def quiet(seconds: float) -> dict[str, Any]:
    return made_up_status(leader=side(lag=lag(none_for_seconds=seconds)), follower=side(lag=lag(none_for_seconds=9e9)))


# where the sidecars are


def test_sidecars_are_at_the_brokers_hosts_and_one_port(
    capsys: pytest.CaptureFixture[str], admin: Admin, cluster: MadeUpCluster, nobody: str
) -> None:
    """One of them down costs a line, and status 1."""
    say(admin, made_up_status())
    port = admin.address.partition(":")[2]
    assert main(["status", *CLUSTER, "--admin-port", port]) == 1
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines() if "127.0.0." in line]
    assert rows[0][:9] == ["1", admin.address, "1.2.3", "leader", "4.96", "MB/s", "5", "MB/s", "http,"]
    assert "4 min 15 s" in captured.out
    assert rows[2] == ["2", f"127.0.0.2:{port}", *["-"] * 8, "no", "answer"]
    assert captured.err == f"weir: no sidecar answers at 127.0.0.2:{port}: Connection refused.\n"


def test_sidecars_on_shared_hosts_have_to_be_named(capsys: pytest.CaptureFixture[str], cluster: MadeUpCluster) -> None:
    cluster.hosts[2] = "127.0.0.1"
    code, error = failing(capsys, "status", *CLUSTER)
    assert code == 2
    assert (
        error == "2 brokers have 1 hosts; sidecars that share a host have ports of their own: name them with --admin."
    )


def test_sidecars_are_at_all_addresses_of_a_name(
    capsys: pytest.CaptureFixture[str], admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, port: object, **more: object) -> list[Any]:
        assert host == "sidecars.example"
        return [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("127.0.0.1", 0))]

    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: (resolve if "example" in host else real)(host, *a, **k)
    )
    port = admin.address.partition(":")[2]
    assert main(["throttle", "show", "--json", "--admin-dns", "sidecars.example", "--admin-port", port]) == 0
    assert json.loads(capsys.readouterr().out) == [{"admin": admin.address, "throttle": THROTTLE}]


def test_name_or_cluster_that_does_not_answer_is_a_sentence(capsys: pytest.CaptureFixture[str], nobody: str) -> None:
    code, error = failing(capsys, "status", "--admin-dns", "no-such-host.invalid")
    assert (code, error.partition(":")[0]) == (1, "--admin-dns no-such-host.invalid")
    code, error = failing(capsys, "status", "--bootstrap-server", "nowhere")
    assert (code, error) == (2, "--bootstrap-server: 'nowhere' is no address: give it as in kafka1:9092.")


def test_cluster_that_refuses_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise ControlError("Connecting to 127.0.0.1:1", "nobody there")

    monkeypatch.setattr(move_admin, "MoveAdmin", refuse)
    code, error = failing(capsys, "status", *CLUSTER)
    assert (code, error) == (1, "Connecting to 127.0.0.1:1 failed: nobody there.")


@pytest.mark.parametrize("command", [["status"], ["throttle", "show"], ["throttle", "set", "--leader-rate", "1"]])
def test_cluster_s_client_properties_are_given_on(both: list[str], cluster: MadeUpCluster, command: list[str]) -> None:
    assert main([*command, *both, "--command-config", "client.properties"]) == 0
    assert cluster.command_config == Path("client.properties")


def test_client_properties_that_cannot_be_read_are_wrong_usage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=NONE\n")
    code, error = failing(capsys, "status", *CLUSTER, "--command-config", str(file))
    assert code == 2
    assert error.startswith("--command-config: security.protocol ")


# status


def test_status_tells_who_is_held_up_and_which_moves_are_stuck(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster
) -> None:
    stuck = late("orders", 0, 7, stuck=True)
    standing = {**MOVING, "lag": {**MOVING["lag"], "stands_still": True, "time_left_seconds": None, "worst": [stuck]}}
    say(admins[0], made_up_status(leader=standing))
    cluster.moves = {
        Partition("orders", 0): Reassignment((1, 2), (2,), ()),
        Partition("orders", 3): Reassignment((1, 9), (9,), ()),
    }
    assert main(["status", *both]) == 0
    out = capsys.readouterr().out
    assert "stands still" in out
    assert f"Broker 1, leader side: {MOVING['held_up_by']['sentence']} Its lag has not fallen for a minute." in out
    assert "Moving: orders-0, orders-3." in out
    assert "Stuck: orders-0, broker 2 is not following: look at its log." in out
    assert "Stuck: orders-3, broker 9 is down." in out
    assert f"Kafka's own throttle: broker 1: {LEADER_RATE} = 5000000, " in out
    assert "stale" not in out


def test_status_tells_of_a_broker_just_gone_and_all_others(
    capsys: pytest.CaptureFixture[str], both: list[str], cluster: MadeUpCluster
) -> None:
    cluster.gone = {2}
    assert main(["status", *both]) == 0
    out = capsys.readouterr().out
    assert "Broker 2 does not tell its own throttle: UnknownBrokerIdError: 2." in out
    assert f"Kafka's own throttle: broker 1: {LEADER_RATE} = 5000000, topic orders: {LEADER_REPLICAS} = *." in out
    assert main(["status", "--json", *both]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"]["silent_brokers"] == {"2": "UnknownBrokerIdError: 2"}
    assert main(["throttle", "show", *both]) == 0
    assert "Broker 2 does not tell its own throttle" in capsys.readouterr().err
    assert cluster.patience_seconds == 10


def test_status_tells_of_troubles_and_of_settings_that_differ(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str]
) -> None:
    told = {**made_up_status(leader=side()), "digests": {"limits": "a", "quotas": "c"}}
    say(
        admins[0],
        {**told, "troubles": {"config_refused": "the file was refused", "samples_lost": "x", "saturated": "y"}},
    )
    say(
        admins[1],
        {
            **told,
            "hidden_by_http": {"kafka": ["a.rate"], "file": list("bcdef")},
            "broker_id": 2,
            "digests": {"limits": "b", "quotas": "c"},
        },
    )
    assert main(["status", *both]) == 0
    out = capsys.readouterr().out
    assert "Broker 1: the file was refused (docs/operations.md#weirtrouble)." in out
    assert "Broker 1: x (docs/operations.md#weirsamplesdropped)." in out
    assert "Broker 1: y (docs/operations.md#weirsidecarsaturated)." in out
    assert "The limits of these brokers' sidecars differ: 1; 2 (docs/operations.md#weirunlikesettings)." in out
    assert "The quotas of" not in out
    assert (
        "Broker 2: what was set over HTTP hides b, c, d and 2 more settings of the file's throttle and a.rate of"
        " Kafka's own throttle; `weir throttle clear` ends this."
    ) in out


def test_status_tells_who_waits(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], cluster: MadeUpCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know its broker's id; the cluster tells whose host it is at."""
    say(admins[0], made_up_status(leader=side()))
    say(admins[1], waiting())
    named = [word for admin in admins for word in ("--admin", admin.address)]
    for few, expected in ((10, "A sidecar: tokens: no such file"), (1, "2 sidecars, 1 ready")):
        monkeypatch.setattr(many, "FEW", few)
        assert main(["status", *CLUSTER, *named]) == 0
        assert expected in (out := capsys.readouterr().out)
        assert out.count("tokens: no such file") == 1
    monkeypatch.setattr(many, "FEW", 10)
    cluster.hosts = {2: admins[1].address.partition(":")[0]}
    assert main(["status", *CLUSTER, "--admin-port", admins[1].address.partition(":")[2]]) == 0
    first, *_ = (line for line in capsys.readouterr().out.splitlines() if admins[1].address in line)
    assert first.split() == ["2", admins[1].address, "1.2.3", *"-------", "waiting"]
    assert main(["status", "--admin", admins[1].address]) == 0
    assert capsys.readouterr().out.splitlines() == ["A sidecar: tokens: no such file (docs/operations.md#weirtrouble)."]


def test_status_tells_that_no_sidecar_answers(
    capsys: pytest.CaptureFixture[str], cluster: MadeUpCluster, nobody: str
) -> None:
    port = nobody.partition(":")[2]
    assert main(["status", *CLUSTER, "--admin-port", port]) == 1
    assert "No sidecar tells of itself: none runs, or none is reached" in capsys.readouterr().out


def test_status_has_a_row_for_each_quota(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str]
) -> None:
    quotas = [quota("configured"), quota("recovery", 3_000_000, 1_500_000.0), quota("zones", 9, mode="observe")]
    told = made_up_status(leader=side(quotas=quotas), follower=side())
    told["settings"] = {"leader.recovery.throttled.rate": {"value": 3_000_000, "source": "file"}}
    say(admins[0], told)
    assert main(["status", *both]) == 0
    rows = [line.split()[3:] for line in capsys.readouterr().out.splitlines() if admins[0].address in line]
    assert [" ".join(row) for row in rows] == [
        "leader 0 B/s none - 0 0 - ready",
        "leader 1.5 MB/s 3 MB/s recovery, file - - - ready",
        "leader 0 B/s 9 B/s, observed zones - - - ready",
        "follower 0 B/s none - 0 0 - ready",
    ]


def test_status_of_a_cluster_has_its_limited_clients(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str]
) -> None:
    told = made_up_status(leader=side())
    for number, admin in enumerate(admins, start=1):
        clients = [limited(f"connector-consumer-s3-{number}", share=0.5)]
        say(admin, {**told, "broker_id": number, "limits": {"clients": clients, "more": 0}})
    assert main(["status", *both]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if "s3" in line]
    assert rows == [f"{number} connector-consumer-s3-{number} 998 1,000 (50% here) 87% -" for number in (1, 2)]


def test_many_sidecars_are_folded(
    capsys: pytest.CaptureFixture[str], both: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """See test_many.py for more of them."""
    monkeypatch.setattr(many, "FEW", 1)
    monkeypatch.setattr(throttle, "FEW", 1)
    assert main(["status", *both]) == 0
    assert capsys.readouterr().out.startswith("2 sidecars, all ready, nothing moves, ")
    assert main(["throttle", "show", *both]) == 0
    assert "all 2" in capsys.readouterr().out


def test_status_json_has_sidecars_and_cluster(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster
) -> None:
    for admin in admins:
        say(admin, quiet(600))
    assert main(["status", "--json", *both]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [sidecar["admin"] for sidecar in found["sidecars"]] == [admin.address for admin in admins]
    assert found["cluster"]["why_not_stale"] is None
    assert [throttle["setting"] for throttle in found["cluster"]["stale"]] == [LEADER_RATE, LEADER_REPLICAS]
    assert found["cluster"]["moves"] == []


def test_status_marks_a_stale_throttle(
    capsys: pytest.CaptureFixture[str], admins: list[Admin], both: list[str], cluster: MadeUpCluster
) -> None:
    for admin in admins:
        say(admin, quiet(600))
    assert main(["status", *both]) == 0
    assert "It is stale" in capsys.readouterr().out


def test_status_watch_goes_on_when_one_does_not_answer(
    capsys: pytest.CaptureFixture[str],
    both: list[str],
    cluster: MadeUpCluster,
    monkeypatch: pytest.MonkeyPatch,
    nobody: str,
) -> None:
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["status", "--watch", *both, "--admin", nobody]) == 130
    out = capsys.readouterr().out
    assert out.count("no answer") == 3
    assert out.count(f"no sidecar answers at {nobody}") == 3


def test_status_watch_json_is_a_line_each_time(
    capsys: pytest.CaptureFixture[str], both: list[str], cluster: MadeUpCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["status", "--watch", "--json", *both]) == 130
    (line,) = capsys.readouterr().out.split("\n")[:1]
    assert len(json.loads(line)["sidecars"]) == 2


@pytest.mark.long
def test_slow_connection_to_a_cluster_is_told_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reachable, "PROBE_SECONDS", 0.5)
    monkeypatch.setattr(connecting, "SLOW_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["move", "list", "--bootstrap-server", there]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"Connecting to {there}, which takes its time."
    assert "did not answer within 0.5 s" in second
