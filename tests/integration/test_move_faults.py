# SPDX-License-Identifier: Apache-2.0
"""`weir move` on three real brokers: it is killed, its topic goes, the controller fails, and what people give it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import cycle
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from tests.integration.move_commands import MB, MoveCommands
from tests.integration.moves import clear, filled
from tests.throttle_names import LEADER_RATE, LEADER_REPLICAS
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.planning.move_throttle import Standing

pytestmark = pytest.mark.integration

NOTHING = Standing()
MANY = 500
"""Partitions of a topic that a broker makes for some seconds."""

KILLED = {"execute": 5.5, "execute in steps": 6.0, "execute --finish-by": 7.0, "verify": 2.5, "cancel": 2.5}
"""What is killed, and how many seconds after its start at most."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with NEWEST.cluster(3) as cluster:
        yield cluster


@pytest.fixture
def move(cluster: Cluster, tmp_path: Path) -> Iterator[MoveCommands]:
    commands = MoveCommands(cluster, tmp_path)
    yield commands
    commands.admin.clear_native_throttle(cluster.broker_ids, ())
    commands.admin.close()
    clear(cluster)


def words_of(move: MoveCommands, kind: str, plan: Path) -> tuple[str, ...]:
    """The command that is to be killed. What it needs has been done."""
    match kind:
        case "execute":
            return "execute", "--throttle", "1MB"
        case "execute in steps":
            return "execute", "--throttle", "1MB", "--reassignment-batch-size", "1"
        case "execute --finish-by":
            return "execute", "--finish-by", (datetime.now().astimezone() + timedelta(seconds=5)).isoformat()
    move.run("execute", plan, "--throttle", "200k" if kind == "cancel" else "5MB")
    if kind == "verify":
        move.wait_for_end()
    return (kind,)


@pytest.mark.parametrize("kills", [len(KILLED), pytest.param(60, marks=pytest.mark.slow)])
def test_move_killed_at_any_point_leaves_nothing_after_a_verify(move: MoveCommands, kills: int) -> None:
    """What stood before stands again, which only the journal tells."""
    topic = filled(move.cluster, move.topic, [2], 1 * MB, partitions=4)
    move.admin.set_native_throttle({2: {LEADER_RATE: 7_000_000}}, {topic: {LEADER_REPLICAS: "9:7"}})
    move.cluster.wait_for("what stands before", lambda: bool(move.throttles().rates), 30)
    before = move.throttles()
    random = Random(20261122)
    for number, kind in zip(range(kills), cycle(KILLED), strict=False):
        at = {state.replicas for state in move.admin.partitions([topic]).values()}
        to = 3 if (2,) in at else 2  # a kill may have left some here and some there: these move, too
        plan = move.plan(topic, {partition: (to,) for partition in range(4)})
        for journal in plan.parent.glob(f"{plan.name}.*.weir-move"):
            journal.unlink()
        command, *options = words_of(move, kind, plan)
        with move.start(command, plan, *options) as process:
            sleep(random.uniform(0.3, KILLED[kind]))
            process.kill()
        move.wait_for_end(120)
        error = move.run("verify", plan, status=None)[1]
        left = any(state.replicas != (to,) for state in move.admin.partitions([topic]).values())
        assert not left or "execute the plan again" in error
        assert move.throttles() == before, f"kill {number} of {kind}"
    move.run("execute", plan, "--throttle", "5MB", "--watch")  # and given again, it goes on to the end
    assert move.throttles() == before


def test_two_moves_that_begin_at_once_leave_nothing(move: MoveCommands) -> None:
    """The same plan twice, of which one is refused, and another plan beside it."""
    topic = filled(move.cluster, move.topic, [2], 4 * MB, partitions=2)
    first, second = move.plan(topic, {0: [3]}, "first"), move.plan(topic, {1: [3]}, "second")
    options = ("--throttle", "5MB", "--additional")
    started = [move.start("execute", plan, *options) for plan in (first, first, second)]
    said = [process.communicate(timeout=60)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 0, 1], said
    assert started[2].returncode == 0
    assert "another `weir move` is at work on this plan" in said[0] + said[1]
    move.wait_for_end()
    for plan in (first, second, first):
        move.run("verify", plan, status=None)  # 1 while the other's entries name the same brokers
    assert move.throttles() == NOTHING


def test_topic_that_is_deleted_in_mid_move_leaves_no_throttle(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [2], 4 * MB, partitions=2)
    plan = move.plan(topic, {0: [3], 1: [3]})
    move.run("execute", plan, "--throttle", "100k")
    move.admin.delete_topic(topic)
    move.cluster.wait_for("the topic's end", lambda: not move.admin.partitions(), 30)
    out, _ = move.run("verify", plan, "--watch")
    assert "topic deleted" in out
    assert move.throttles() == NOTHING


def test_move_is_followed_over_the_controllers_failure(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [2], 8 * MB, partitions=2)
    plan = move.plan(topic, {0: [3], 1: [3]})
    move.run("execute", plan, "--throttle", "500k")
    with move.start("verify", plan, "--watch", "--json") as process:
        assert process.stdout is not None
        assert "away" not in json.loads(process.stdout.readline())
        move.cluster.kill_broker(1)  # the only controller
        with move.start("list") as listing:  # one that begins while it is away
            sleep(3)  # a request that is sent meanwhile is answered when it is back
            move.cluster.start_broker(1)
            listed, error = listing.communicate(timeout=120)
        assert listing.returncode == 0, error
        assert topic in listed
        out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert json.loads(out.splitlines()[-1])["done"]
    assert move.throttles() == NOTHING


def test_cancel_while_the_old_broker_is_down_tells_a_way(move: MoveCommands) -> None:
    """Nobody could take the partition back (KAFKA-14424). After an unclean election the plan is executed again."""
    topic = filled(move.cluster, move.topic, [2], 4 * MB, partitions=1)
    plan = move.plan(topic, {0: [3]})
    move.run("execute", plan, "--throttle", "10k")
    move.cluster.kill_broker(2)
    move.cluster.wait_for("no broker 2", lambda: 2 not in move.admin.brokers(), 30)
    _, error = move.run("cancel", plan, status=1)
    assert f"{topic}-0: Unable to revert partition assignment for {topic}:0 because it would require an un" in error
    assert "(brokers 2, which had it before, are down: start one of them, or let one of the new brokers lead" in error
    assert (
        "it by kafka-leader-election --election-type unclean, which loses what it has not copied, and execute the"
        in error
    )
    server = ("--bootstrap-server", move.cluster.bootstrap_servers[0])
    election = ("--election-type", "unclean", "--topic", topic, "--partition", "0")
    move.cluster.java_tool("election", "org.apache.kafka.tools.LeaderElectionCommand", [*server, *election])
    move.run("execute", plan)
    move.wait_for_end(10)
    assert [state.replicas for state in move.admin.partitions([topic]).values()] == [(3,)]
    assert "broker 2 is down" in move.run("verify", plan, status=1)[1]
    move.cluster.start_broker(2)
    move.run("verify", plan)
    assert move.throttles() == NOTHING


def test_directory_that_is_none_is_told_before_anything_is_set(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1], MB, partitions=1)
    data = str(move.cluster.brokers[2].data)
    plan = move.folder / "plan.json"

    def planned(path: str) -> Path:
        entry = {"topic": topic, "partition": 0, "replicas": [2], "log_dirs": [path]}
        plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        return plan

    _, error = move.run("execute", planned("/no/such/folder"), "--throttle", "1MB", status=1)
    assert f"broker 2 has no log directory /no/such/folder, where {topic}-0 is to go: it has {data}" in error
    assert move.admin.reassignments() == {}
    assert move.throttles() == NOTHING
    move.run("execute", planned(data), "--throttle", "10MB", "--watch")
    assert [state.replicas for state in move.admin.partitions([topic]).values()] == [(2,)]


def test_list_that_brokers_would_not_take_is_told_at_once(move: MoveCommands) -> None:
    """Somebody else's entries take all of the room but for those of the move, and then a character more."""
    topic = filled(move.cluster, move.topic, [1], MB, partitions=2)
    others = [f"{number}:7" for number in range(10_000, 14_095)]
    for last, fits in (("10:7", False), ("1:7", True)):
        listed = ",".join([*others, last])
        move.admin.set_native_throttle({}, {topic: {LEADER_REPLICAS: listed}})
        before = move.throttles()
        begun = monotonic()
        _, error = move.run("execute", move.plan(topic, {0: [2]}), "--throttle", "10MB", status=0 if fits else 1)
        if fits:
            assert len(move.throttles().lists[topic][LEADER_REPLICAS]) == 32_767
            move.run("verify", move.plan(topic, {0: [2]}), "--watch")
            assert [state.replicas for state in move.admin.partitions([topic]).values()] == [(2,), (1,)]
        else:
            assert monotonic() - begun < 20
            assert "would have 32,768 characters, and brokers take 32,767: make plans with which at most 4,0" in error
            assert move.admin.reassignments() == {}
        assert move.throttles() == before


def test_plans_in_one_file_keep_their_throttles(move: MoveCommands) -> None:
    """The second plan is done while the first one moves (kafka-kit #346)."""
    topic = filled(move.cluster, move.topic, [1], 6 * MB, partitions=2)
    move.run("execute", move.plan(topic, {0: [2]}), "--throttle", "200k")
    both = move.plan(topic, {1: [1]})
    move.run("execute", both, "--throttle", "200k", "--additional")
    _, error = move.run("verify", both)
    assert f"still moves {topic}-0, and its throttle stays" in error
    assert move.throttles().lists[topic][LEADER_REPLICAS] == "0:1"
    assert move.throttles().rates[1]["leader.replication.throttled.rate"] == "200000"
    assert move.admin.reassignments()
    move.run("execute", move.plan(topic, {0: [2]}), "--throttle", "20MB", "--additional", "--watch")
    assert move.throttles() == NOTHING


def test_verify_of_one_plan_tells_of_another_ones_throttle(move: MoveCommands) -> None:
    """The first of two phases was never verified (kafka-kit #427)."""
    topic = filled(move.cluster, move.topic, [1], MB, partitions=2)
    first, second = move.plan(topic, {0: [2]}, "first"), move.plan(topic, {1: [3]}, "second")
    for plan in (first, second):
        move.run("execute", plan, "--throttle", "10MB")
        move.wait_for_end()
    _, error = move.run("verify", second)
    assert f"nothing moves, and {topic} still has throttled replicas that another plan or person has set" in error
    assert "note" not in move.run("verify", first)[1]
    assert move.throttles() == NOTHING


def test_addresses_as_scripts_have_them_reach_the_cluster(move: MoveCommands) -> None:
    server, *_ = move.cluster.bootstrap_servers
    for given in (f"PLAINTEXT://{server}", f"{server},", f"nowhere.invalid:9092,{server}"):
        out, _ = move.run("list", None, "--bootstrap-server", given)
        assert "Nothing is moving" in out
    _, error = move.run("list", None, "--bootstrap-server", "nowhere.invalid:9092", status=1)
    assert "nowhere.invalid:9092 has a name that does not resolve" in error


def test_move_begins_while_a_broker_makes_a_large_topic(move: MoveCommands) -> None:
    small = filled(move.cluster, move.topic, [1], MB, partitions=1)
    first = move.cluster.brokers[1].data / f"{move.topic}-large-0"
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(move.cluster.create_topic, f"{move.topic}-large", {number: [1] for number in range(MANY)})
        move.cluster.wait_for("the first of its partitions", first.is_dir, 30)
        move.run("execute", move.plan(small, {0: [2]}), "--throttle", "10MB", "--watch")
        making.result()
    assert [state.replicas for state in move.admin.partitions([small]).values()] == [(2,)]
    assert move.throttles() == NOTHING
