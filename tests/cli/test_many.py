# SPDX-License-Identifier: Apache-2.0
"""What `weir status` and `weir throttle show` print of tens and hundreds of sidecars."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.commands import THROTTLE
from tests.proxy.page.made_up import lag, quota, side
from tests.proxy.page.made_up import status as made_up_status
from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS
from weir.cli import many, throttle
from weir.cli.sidecars import Reply
from weir.cli.status import _print_many
from weir.control.cluster_admin import ThrottleSetting
from weir.planning.units import show_rate
from weir.proxy.config.address import Address

MB = 1_000_000
OF_BROKER = "DYNAMIC_BROKER_CONFIG"


def sidecar(broker: int, **more: Any) -> Reply:
    """One that is ready, with a quota of 5 MB/s on both sides, and with nothing behind."""
    sides = {name: side(quotas=[quota("replication", 5 * MB, MB)], lag=lag()) for name in ("leader", "follower")}
    return Reply(
        Address(f"10.0.{broker // 200}.{broker % 200}", 9690),
        made_up_status(**{**sides, **more}) | {"broker_id": broker},
    )


def late(broker: int, messages: int) -> Reply:
    behind = lag(partitions_behind=2, messages=messages, time_left_seconds=90.0)
    held = {"by": "quota", "sentence": "The quota holds it up."}
    return sidecar(broker, leader=side(quotas=[quota("replication", 5 * MB, MB)], lag=behind, held_up_by=held))


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([3, 1, 2, 7], "1-3, 7"),
        ([5], "5"),
        ([], ""),
        ([1, 3, 4, 4, 9, 10, 11], "1, 3-4, 9-11"),
        ([*range(1, 90, 2), 91, 92], "1, 3, 5, 7, 9 and 42 more"),
    ],
)
def test_numbers_are_shown_in_ranges(numbers: list[int], shown: str) -> None:
    assert many.in_ranges(numbers) == shown


@pytest.mark.parametrize("count", [30, 500])
def test_sidecars_that_are_alike_are_one_row(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    replies = [sidecar(broker) for broker in range(1, count + 1)]
    replies[6] = late(7, 1234)
    _print_many(replies, 2)
    summary, _, _, *rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert summary.startswith(
        f"{count} sidecars, all ready, 2 partitions move, 2 replicas are behind by 1,234 messages, "
    )
    assert (
        f"{count} MB/s of {show_rate(5 * count * MB)}, 1 min 30 s left. Most is left at broker 7: The quota holds"
        in summary
    )
    assert [row.split()[:2] for row in rows] == [
        ["7", "leader"],
        ["1-6,", f"8-{count}"],
        [f"1-{count}", "follower"],
    ]
    assert max(map(len, rows)) <= 80


def test_most_of_what_is_behind_is_first_and_the_rest_counted(capsys: pytest.CaptureFixture[str]) -> None:
    replies = [late(broker, 1000 * broker) for broker in range(1, 41)]
    replies.append(Reply(Address("10.9.9.9", 9690), error="no sidecar answers at 10.9.9.9:9690: Connection refused"))
    _print_many(replies, 0)
    out = capsys.readouterr().out
    assert out.startswith("41 sidecars, 40 ready, nothing moves, 80 replicas are behind by 820,000 messages")
    brokers = [line.split()[0] for line in out.splitlines() if " leader " in line]
    assert brokers == [str(broker) for broker in range(40, 30, -1)]
    assert "30 more are behind by less" in out


def test_versions_that_differ_are_told() -> None:
    replies = [sidecar(broker) for broker in range(1, 31)]
    for reply in replies[:3]:
        reply.value["version"] = "0.1"
    assert list(many.versions(replies)) == [f"Versions: 0.1 on 1-3; {replies[9].value['version']} on 4-30."]
    assert list(many.versions(replies[3:])) == []


def test_sentences_of_many_brokers_are_one() -> None:
    said = [f"Broker {broker} is not ready: x." for broker in range(1, 31)] + ["Broker 4: y.", "No broker."]
    assert many.together(said) == ["Brokers 1-30 are not ready: x.", "Broker 4: y.", "No broker."]
    lines = many.together(f"Broker {broker}: {broker} things." for broker in range(1, 101))
    assert (len(lines), lines[-1]) == (11, "90 more such lines: --json has them.")


def rated(broker: int) -> Reply:
    """Two rates among them, as after a change that reached only half of them."""
    rates = {LEADER_RATE: 5 * MB, FOLLOWER_RATE: 50 * MB + broker % 2}
    sources = {LEADER_RATE: "file", FOLLOWER_RATE: "http", f"topics.orders.{LEADER_REPLICAS}": "http"}
    return Reply(sidecar(broker).admin, {**THROTTLE, **rates, "sources": sources})


@pytest.mark.parametrize("count", [30, 500])
def test_throttle_of_many_is_a_screen_of_80_columns(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka's own settings too: a rate of each broker, and a list of each replica that moves."""
    listed = ",".join(f"{number}:1" for number in range(5000))
    kafka = [
        *(ThrottleSetting("broker", str(one), LEADER_RATE, "5000000", OF_BROKER) for one in range(1, count + 1)),
        ThrottleSetting("topic", "orders", LEADER_REPLICAS, listed, "DYNAMIC_TOPIC_CONFIG"),
    ]
    replies = [rated(broker) for broker in range(1, count + 1)]
    replies[-1].value["mode"] = "observe"
    assert throttle._print(replies, False, kafka) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20
    assert lines[:3] == [
        f"all {count}:",
        f"  {LEADER_RATE} = 5000000 bytes/s (5 MB/s), from file",
        f"  orders: {LEADER_REPLICAS} = *, from http",
    ]
    assert f"10.0.0.1:9690, 10.0.0.3:9690, 10.0.0.5:9690 and {count // 2 - 3} more:" in lines
    assert f"{replies[-1].admin}:" in lines
    assert f"Kafka, brokers 1-{count}:" in lines
    assert "    0:1,1:1,2:1,3:1,4:1,5:1,6:1,7:1 and 4992 more, from DYNAMIC_TOPIC_CONFIG" in lines


@pytest.mark.parametrize("count", [30, 500])
def test_status_of_many_that_differ_keeps_to_80_columns(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Every other one is behind."""
    _print_many([late(broker, 10**6 * broker) if broker % 2 else sidecar(broker) for broker in range(1, count + 1)], 9)
    _, *table = capsys.readouterr().out.splitlines()
    assert max(map(len, table)) <= 80
    assert len(table) <= 32
