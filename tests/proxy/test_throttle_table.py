# SPDX-License-Identifier: Apache-2.0
"""The throttle table in force: changes by file and HTTP, where each part came from, and refused changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine

import pytest

from tests.fakes.clock import MovedClock
from tests.proxy.test_config import FULL
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import QuotaTable, ThrottleTable
from weir.proxy.expiry import Setting
from weir.proxy.layers import EffectiveThrottle, Entry, InForce, Layer, Lease, Path
from weir.proxy.throttle.table import MOST_TOLD, TOPICS_PER_SLICE, LayeredThrottle, changes_between, sides_by_hand
from weir.quota.settings import SideName
from weir.quota.throttled_replicas import ALL_REPLICAS

FROM_FILE = {
    LEADER_RATE: 5000000,
    FOLLOWER_RATE: 6000000,
    "topics": {"orders": {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:2,1:2"}},
}


class Applied(list[ThrottleTable]):
    """Records what was put in force."""


@pytest.fixture
def applied() -> Applied:
    return Applied()


@pytest.fixture
def in_force(applied: Applied) -> LayeredThrottle:
    return LayeredThrottle(parse_config(FULL).throttle, applied.append)


async def shown(in_force: LayeredThrottle) -> dict[str, object]:
    plain = await in_force.as_plain()
    del plain["sources"], plain["layers"]
    return plain


async def test_throttle_of_the_file_is_shown_with_its_source(in_force: LayeredThrottle) -> None:
    assert await shown(in_force) == FROM_FILE
    assert (await in_force.as_plain())["sources"] == {
        LEADER_RATE: "file",
        FOLLOWER_RATE: "file",
        f"topics.orders.{LEADER_REPLICAS}": "file",
        f"topics.orders.{FOLLOWER_REPLICAS}": "file",
    }


async def test_throttle_replaced_is_the_new_table_alone(in_force: LayeredThrottle, applied: Applied) -> None:
    await in_force.replace({LEADER_RATE: 7})
    assert await shown(in_force) == {LEADER_RATE: 7, "topics": {}}
    assert (await in_force.as_plain())["sources"] == {LEADER_RATE: "http"}
    assert [table.leader_rate for table in applied] == [7]


async def test_throttle_merged_keeps_what_is_not_named(in_force: LayeredThrottle) -> None:
    await in_force.merge({LEADER_RATE: 7, "topics": {"payments": {FOLLOWER_REPLICAS: "3:1"}}})
    assert await shown(in_force) == {
        **FROM_FILE,
        LEADER_RATE: 7,
        "topics": {**FROM_FILE["topics"], "payments": {FOLLOWER_REPLICAS: "3:1"}},  # type: ignore[dict-item]
    }
    sources = (await in_force.as_plain())["sources"]
    assert (sources[LEADER_RATE], sources[FOLLOWER_RATE]) == ("http", "file")
    assert sources[f"topics.payments.{FOLLOWER_REPLICAS}"] == "http"
    assert sources[f"topics.orders.{LEADER_REPLICAS}"] == "file"


async def test_throttle_merged_does_not_reread_topics_not_named(in_force: LayeredThrottle) -> None:
    """There may be thousands, and every connection waits meanwhile."""
    orders = in_force.table.topics["orders"]
    await in_force.merge({LEADER_RATE: 7, "topics": {"payments": {FOLLOWER_REPLICAS: "3:1"}}})
    assert in_force.table.topics["orders"].leader_replicas is orders.leader_replicas
    await in_force.merge({"topics": {"orders": {FOLLOWER_REPLICAS: "3:1"}}})
    assert in_force.table.topics["orders"].leader_replicas is orders.leader_replicas


@pytest.mark.parametrize(
    ("patch", "left"),
    [
        ({LEADER_RATE: None}, {FOLLOWER_RATE: 6000000, "topics": FROM_FILE["topics"]}),
        ({"topics": None}, {LEADER_RATE: 5000000, FOLLOWER_RATE: 6000000, "topics": {}}),
        ({"topics": {"orders": None}}, {LEADER_RATE: 5000000, FOLLOWER_RATE: 6000000, "topics": {}}),
        ({"topics": {"orders": {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: ""}}}, {**FROM_FILE, "topics": {}}),
        ({"topics": {"unknown": None, "orders": {"unknown": None}}, "unknown": None}, FROM_FILE),
        ({}, FROM_FILE),
    ],
)
async def test_throttle_merged_null_removes(
    in_force: LayeredThrottle, patch: dict[str, object], left: dict[str, object]
) -> None:
    await in_force.merge(patch)
    assert await shown(in_force) == left


async def test_throttle_cleared_is_empty(in_force: LayeredThrottle, applied: Applied) -> None:
    in_force.clear()
    assert await shown(in_force) == {"topics": {}}
    assert (await in_force.as_plain())["sources"] == {}
    assert applied == [ThrottleTable()]


@pytest.mark.parametrize(
    ("patch", "undone"),
    [
        ({LEADER_RATE: 7}, [LEADER_RATE]),
        ({LEADER_RATE: None}, [LEADER_RATE]),  # what HTTP removed comes back
        ({"topics": {"a": {LEADER_REPLICAS: "*"}}}, [f"topics.a.{LEADER_REPLICAS}"]),  # what it added goes
        ({"topics": {"orders": None}}, [f"topics.orders.{FOLLOWER_REPLICAS}", f"topics.orders.{LEADER_REPLICAS}"]),
        ({LEADER_RATE: 5000000}, []),  # the same as the file's
        ({FOLLOWER_RATE: 8}, []),  # the new file has it too
        ({}, []),
    ],
)
async def test_throttle_loaded_from_file_undoes_http_and_names_it(
    in_force: LayeredThrottle, patch: dict[str, object], undone: list[str]
) -> None:
    await in_force.merge(patch)
    assert in_force.load(parse_config(FULL.replace("6000000", "8")).throttle) == undone
    assert await shown(in_force) == {**FROM_FILE, FOLLOWER_RATE: 8}
    assert set((await in_force.as_plain())["sources"].values()) == {"file"}
    assert in_force.load(parse_config(FULL).throttle) == []  # it was the file that changed


async def test_throttle_as_it_is_shown_may_be_put_back(in_force: LayeredThrottle) -> None:
    await in_force.replace(await in_force.as_plain())
    assert await shown(in_force) == FROM_FILE


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({LEADER_RATE: -1}, LEADER_RATE),
        ({LEADER_RATE: "5MB"}, LEADER_RATE),
        ({LEADER_RATE: True}, LEADER_RATE),
        ({LEADER_RATE: {}}, LEADER_RATE),
        ({"rate": 5}, "rate"),
        ({"topics": 5}, "topics"),
        ({"topics": {"orders": "*"}}, "topics.orders"),
        ({"topics": {"orders": {LEADER_REPLICAS: "1"}}}, f"topics.orders.{LEADER_REPLICAS}"),
        ({"topics": {"orders": {"replicas": "*"}}}, "topics.orders.replicas"),
        ({"topics": {"a b": {}}}, "topics.a b"),
        ({FOLLOWER_RATE: 5, LEADER_RATE: -1}, LEADER_RATE),
        ([], "body"),
        (None, "body"),
        (5, "body"),
    ],
)
@pytest.mark.parametrize("change", [LayeredThrottle.replace, LayeredThrottle.merge])
async def test_throttle_bad_change_names_its_field_and_alters_nothing(
    in_force: LayeredThrottle, applied: Applied, change: object, body: object, field: str
) -> None:
    before = await in_force.as_plain()
    with pytest.raises(ConfigError) as caught:
        await change(in_force, body)  # type: ignore[operator]
    assert caught.value.field == field
    assert await in_force.as_plain() == before
    assert applied == []


def many_topics(prefix: str) -> dict[str, object]:
    return {"topics": {f"{prefix}{number}": {LEADER_REPLICAS: f"{number}:1"} for number in range(3 * TOPICS_PER_SLICE)}}


@pytest.mark.parametrize("change", [LayeredThrottle.replace, LayeredThrottle.merge])
async def test_throttle_of_many_topics_is_read_aside_and_set_at_once(
    in_force: LayeredThrottle,
    applied: Applied,
    change: Callable[[LayeredThrottle, object], Coroutine[None, None, None]],
) -> None:
    """It is read while others run, and put in force at once."""
    changing = asyncio.create_task(change(in_force, many_topics("t")))
    turns = 0
    while not changing.done():
        assert await shown(in_force) == FROM_FILE
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 3
    (table,) = applied
    assert len(table.topics) == 3 * TOPICS_PER_SLICE + (change is LayeredThrottle.merge)


async def test_throttle_bad_topic_in_the_last_slice_changes_nothing(
    in_force: LayeredThrottle, applied: Applied
) -> None:
    body = many_topics("t")
    body["topics"]["bad"] = {LEADER_REPLICAS: "1"}  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"topics\.bad"):
        await in_force.replace(body)
    assert applied == []
    assert await shown(in_force) == FROM_FILE


async def test_throttle_merged_keeps_what_was_set_while_it_was_read(in_force: LayeredThrottle) -> None:
    await asyncio.gather(
        in_force.merge(many_topics("a")),
        in_force.merge({LEADER_RATE: 7, "topics": {"orders": None}}),
        in_force.merge(many_topics("b")),
    )
    assert len(in_force.table.topics) == 6 * TOPICS_PER_SLICE
    assert in_force.table.leader_rate == 7


async def layers(in_force: LayeredThrottle) -> dict[str, list[dict[str, object]]]:
    return {layer["source"]: layer["parts"] for layer in (await in_force.as_plain())["layers"]}


async def test_throttle_layers_show_what_http_hides_of_the_file(in_force: LayeredThrottle) -> None:
    of_file = [
        {"part": LEADER_RATE, "value": 5000000},
        {"part": FOLLOWER_RATE, "value": 6000000},
        {"part": f"topics.orders.{LEADER_REPLICAS}", "value": "*"},
        {"part": f"topics.orders.{FOLLOWER_REPLICAS}", "value": "0:2,1:2"},
    ]
    assert (await layers(in_force)) == {"file": of_file}
    await in_force.merge({LEADER_RATE: 7, "topics": {"orders": None, "never-there": None}})
    by_http: list[dict[str, object]] = [{"part": "topics.orders", "removed": True}, {"part": LEADER_RATE, "value": 7}]
    assert (await layers(in_force)) == {"file": of_file, "http": by_http}
    await in_force.replace({FOLLOWER_RATE: 8})
    assert (await layers(in_force))["http"] == [{"part": "*", "removed": True}, {"part": FOLLOWER_RATE, "value": 8}]
    in_force.load(parse_config(FULL).throttle)
    assert (await layers(in_force)) == {"file": of_file}


async def test_throttle_with_a_lease_uncovers_the_file_when_it_ends(applied: Applied) -> None:
    clock = MovedClock(0.0)
    in_force = LayeredThrottle(parse_config(FULL).throttle, applied.append, clock)
    lease = {"seconds": 60, "owner": "ann", "reason": "a move"}
    await in_force.merge({LEADER_RATE: 7, "topics": {"orders": {LEADER_REPLICAS: ", "}}, "lease": lease})
    clock.move(50.0)
    assert in_force.next_expiry() == clock() + 10.0
    assert {"part": LEADER_RATE, "value": 7, "expires_in_seconds": 10.0, "owner": "ann", "reason": "a move"} in (
        await layers(in_force)
    )["http"]
    assert in_force.expire() == []
    assert (applied[-1].leader_rate, set((await shown(in_force))["topics"]["orders"])) == (7, {FOLLOWER_REPLICAS})  # type: ignore[index]
    clock.move(10.0)
    assert [(lease.owner, lease.reason) for lease in in_force.expire()] == [("ann", "a move")]
    assert applied[-1] == parse_config(FULL).throttle
    assert await shown(in_force) == FROM_FILE
    assert set(await layers(in_force)) == {"file"}


async def test_throttle_of_a_lease_ended_an_hour_ago_ends_at_once(applied: Applied) -> None:
    """The process was stopped meanwhile: its timers come late."""
    clock = MovedClock(0.0)
    in_force = LayeredThrottle(parse_config(FULL).throttle, applied.append, clock)
    await in_force.merge({LEADER_RATE: 7, "lease": {"seconds": 60}})
    await in_force.merge({FOLLOWER_RATE: 8, "lease": {"seconds": 7200}})
    clock.move(3600.0)
    assert in_force.next_expiry() <= clock()
    assert len(in_force.expire()) == 1
    assert rates(applied) == (parse_config(FULL).throttle.leader_rate, 8)
    assert in_force.next_expiry() == clock() + 3600.0


async def test_throttle_put_with_a_lease_hides_all_until_it_ends(applied: Applied) -> None:
    clock = MovedClock(0.0)
    in_force = LayeredThrottle(parse_config(FULL).throttle, applied.append, clock)
    await in_force.replace({FOLLOWER_RATE: 1, "lease": {"seconds": 5}})
    assert await shown(in_force) == {FOLLOWER_RATE: 1, "topics": {}}
    clock.move(5.0)
    in_force.expire()
    assert await shown(in_force) == FROM_FILE


@pytest.mark.parametrize(
    ("lease", "field"),
    [
        ({"seconds": 0}, "lease.seconds"),
        ({"seconds": "1h"}, "lease.seconds"),
        ({"owner": "ann"}, "lease.seconds"),
        ({"seconds": 1, "who": "ann"}, "lease.who"),
        ({"seconds": 1, "reason": "x" * 201}, "lease.reason"),
        (3600, "lease"),
    ],
)
async def test_throttle_wrong_lease_is_refused_and_changes_nothing(
    lease: object, field: str, in_force: LayeredThrottle, applied: Applied
) -> None:
    with pytest.raises(ConfigError) as refused:
        await in_force.merge({LEADER_RATE: 7, "lease": lease})
    assert refused.value.field == field
    assert not applied


def rates(applied: Applied) -> tuple[int | None, int | None]:
    return applied[-1].leader_rate, applied[-1].follower_rate


async def test_throttle_of_kafka_is_above_the_file_and_below_http(in_force: LayeredThrottle, applied: Applied) -> None:
    kafka = Layer("kafka", {(LEADER_RATE,): Entry(3), (FOLLOWER_RATE,): Entry(4)})
    await in_force.merge({LEADER_RATE: 7})
    in_force.follow(kafka)
    assert rates(applied) == (7, 4)
    sources = (await in_force.as_plain())["sources"]
    assert (sources[LEADER_RATE], sources[FOLLOWER_RATE]) == ("http", "kafka")
    await in_force.merge({FOLLOWER_RATE: None})  # hides Kafka's too
    assert rates(applied) == (7, None)
    in_force.load(parse_config(FULL).throttle)  # a reload undoes what HTTP said, and Kafka's is in force
    assert rates(applied) == (3, 4)
    in_force.follow(Layer("kafka"))
    assert await shown(in_force) == FROM_FILE


async def test_what_a_change_did_is_told_part_by_part(in_force: LayeredThrottle) -> None:
    before = in_force.effective
    quota = {"name": "zones", "side": "leader", "rate": 9, "peers": [3]}
    await in_force.merge({LEADER_RATE: 7, FOLLOWER_RATE: None, "mode": "observe", "quotas": [quota], "topics": None})
    told = changes_between(before, in_force.effective).split("; ")
    assert told[:3] == [f"{FOLLOWER_RATE}: 6000000 -> none", f"{LEADER_RATE}: 5000000 -> 7", "mode: none -> observe"]
    assert told[3].startswith('quotas.zones: none -> {"name":"zones",')
    assert told[4:] == [
        f"topics.orders.{FOLLOWER_REPLICAS}: 0:2,1:2 -> none",
        f"topics.orders.{LEADER_REPLICAS}: * -> none",
    ]
    assert changes_between(before, before) == "nothing"


async def test_of_a_large_change_twenty_parts_are_told(in_force: LayeredThrottle) -> None:
    before = in_force.effective
    await in_force.merge({"topics": {f"t{number}": {LEADER_REPLICAS: "*"} for number in range(1_023)}})
    told = changes_between(before, in_force.effective).split("; ")
    assert (len(told), told[-1]) == (MOST_TOLD + 1, "1,003 more")


LISTED = ("topics", "orders", LEADER_REPLICAS)
QUOTA = QuotaTable(name="zones", side="follower", rate=5)


@pytest.mark.parametrize(
    ("path", "part", "sides"),
    [
        ((LEADER_RATE,), InForce(5, "http"), {"leader"}),
        ((FOLLOWER_RATE,), InForce(5, "kafka"), {"follower"}),
        (LISTED, InForce(ALL_REPLICAS, "http"), {"leader"}),
        (("leader.recovery.throttled.rate",), InForce(5, "http"), {"leader"}),
        (("quotas", "zones"), InForce(QUOTA, "http"), {"follower"}),
        (("mode",), InForce("observe", "http"), set()),
        ((LEADER_RATE,), InForce(5, "file"), set()),
        (LISTED, InForce(ALL_REPLICAS, "file"), set()),
        ((LEADER_RATE,), InForce(5, "http", Lease(100.0)), set()),
        ((LEADER_RATE,), InForce(5, "http", Lease(math.inf, "ann")), {"leader"}),
    ],
)
def test_what_is_in_the_file_or_leased_was_not_forgotten(path: Path, part: InForce, sides: set[SideName]) -> None:
    assert sides_by_hand(EffectiveThrottle({path: part})) & {"leader", "follower"} == sides


async def test_throttle_taken_over_is_what_http_had_set_and_removed(in_force: LayeredThrottle) -> None:
    """Read in one go: thousands of lists one by one would take many times as long."""
    await in_force.merge({**many_topics("new"), "lease": {"seconds": 60, "owner": "me"}})
    await in_force.merge({LEADER_RATE: None, "quotas": [{"name": "q", "side": "leader", "rate": 5, "peers": [2]}]})
    after = LayeredThrottle(parse_config(FULL).throttle, lambda _: None)
    await after.take_over(await in_force.handed_over())
    assert after.effective.values() == in_force.effective.values()
    assert after.next_expiry() == pytest.approx(in_force.next_expiry(), abs=5)


async def test_throttle_that_cannot_be_taken_over_is_refused_and_changes_nothing(in_force: LayeredThrottle) -> None:
    before = in_force.effective
    rate = Setting(path=("leader.reassignment.throttled.rate",), value=5)
    with pytest.raises(ConfigError, match="needs"):
        await in_force.take_over([Setting(path=(LEADER_RATE,), value=7), rate])
    assert in_force.effective == before
