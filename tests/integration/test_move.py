# SPDX-License-Identifier: Apache-2.0
"""`weir move` on three real brokers: plans, throttles that are merged and put back, steps, cancel and list."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest

from tests.integration.move_commands import MB, MoveCommands
from tests.integration.moves import clear, filled
from tests.modes import every_mode
from tests.throttle_names import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from weir.lab.cluster import Cluster
from weir.lab.modes import CORNERS, Mode
from weir.planning.assignment import Partition
from weir.planning.move_throttle import Standing

pytestmark = pytest.mark.integration

NOTHING = Standing()
MODE_PARAMS = every_mode(lambda mode: mode in CORNERS or mode.name == "kraft-3.9", always=CORNERS[-1:])


@pytest.fixture(scope="module", params=MODE_PARAMS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    mode: Mode = request.param
    racks = {broker: {"broker.rack": rack} for broker, rack in ((1, "a"), (2, "b"), (3, "b"))}
    with mode.cluster(3, broker_properties=racks) as cluster:
        yield cluster
        cluster.check_logs()


@pytest.fixture
def move(cluster: Cluster, tmp_path: Path) -> Iterator[MoveCommands]:
    commands = MoveCommands(cluster, tmp_path)
    yield commands
    left = commands.throttles()
    commands.admin.clear_native_throttle(cluster.broker_ids, ())
    clear(cluster)
    commands.admin.close()
    assert left.rates == {}


def test_throttled_move_is_verified_and_leaves_nothing(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1], 12 * MB, partitions=3)
    plan = move.plan(topic, {0: [2], 1: [1, 2], 2: [3]})
    out, note = move.run("execute", plan, "--throttle", "800k")
    assert '"replicas":[1],"log_dirs":["any"]' in out
    assert "3 partitions began to move." in out
    assert "the throttle stays until `weir move verify`" in note
    rates = {LEADER_RATE: "800000", FOLLOWER_RATE: "800000"}
    assert move.throttles() == Standing(
        {1: rates, 2: rates, 3: rates},
        {topic: {LEADER_REPLICAS: "0:1,1:1,2:1", FOLLOWER_REPLICAS: "0:2,1:2,2:3"}},
    )
    out, error = move.run("verify", plan, status=1)
    assert "still moving" in error
    assert move.throttles().rates[1] == rates  # only when it has ended
    move.run("execute", plan, "--throttle", "50MB")  # by Kafka's throttle the rest would wait for 10 s at a time
    out, error = move.run("verify", plan, "--watch")
    assert "Throttle removed" in out
    assert move.throttles() == NOTHING
    states = move.admin.partitions([topic])
    assert [states[Partition(topic, number)].replicas for number in range(3)] == [(2,), (1, 2), (3,)]
    out, error = move.run("verify", plan)  # once more: nothing to do
    assert "Throttle removed" not in out


def test_what_stood_before_comes_back(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1], 2 * MB, partitions=2)
    move.admin.set_native_throttle({1: {LEADER_RATE: 7_000_000}}, {topic: {LEADER_REPLICAS: "1:1,1:3"}})
    move.cluster.wait_for("the rate", lambda: bool(move.throttles().rates), 30)
    before = move.throttles()
    plan = move.plan(topic, {0: [2]})
    move.run("execute", plan, "--throttle", "2MB")
    assert set(move.throttles().lists[topic][LEADER_REPLICAS].split(",")) == {"1:1", "1:3", "0:1"}
    move.wait_for_end()
    move.run("verify", plan)
    assert move.throttles() == before
    move.admin.clear_native_throttle([1], ())
    move.cluster.wait_for("no rate", lambda: not move.throttles().rates, 30)


def test_steps_begin_as_others_end_and_keep_their_throttle(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1], 8 * MB, partitions=8)
    plan = move.plan(topic, dict.fromkeys(range(8), (2,)))
    most = 0
    with move.start("execute", plan, "--throttle", "4MB", "--reassignment-batch-size", "2", "--json") as process:
        while process.poll() is None:
            moving = len(move.admin.reassignments())
            most = max(most, moving)
            if moving:
                assert move.throttles().rates[1]
            sleep(0.05)
        out, error = process.communicate()
    assert process.returncode == 0, error
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["begun"] == [f"{topic}-0", f"{topic}-1"]
    assert lines[-1]["done"] is True
    assert 0 < most <= 2
    assert move.throttles() == NOTHING


def test_cancelled_move_goes_back_and_its_throttle_too(move: MoveCommands) -> None:
    """A move that adds a replica and takes none away is cancelled as well; Kafka's own tool skips it."""
    topic = filled(move.cluster, move.topic, [1], 6 * MB, partitions=2)
    plan = move.plan(topic, {0: [1, 2], 1: [3]})
    move.run("execute", plan, "--throttle", "100k")
    out, _ = move.run("list")
    assert f"{topic}-0" in out and f"{topic}-1" in out
    out, _ = move.run("cancel", plan)
    assert f"Cancelled: {topic}-0, {topic}-1." in out
    assert {state.replicas for state in move.admin.partitions([topic]).values()} == {(1,)}
    assert move.throttles() == NOTHING
    assert move.run("list")[0] == "Nothing is moving.\n"
    assert "Nothing of this plan is moving." in move.run("cancel", plan)[0]


def test_cancel_leaves_the_throttle_of_what_it_skips(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1], 6 * MB, partitions=2)
    plan = move.plan(topic, {0: [2], 1: [2]})
    move.run("execute", plan, "--throttle", "100k")
    move.admin.reassign({Partition(topic, 1): [3]})  # somebody turns one of them
    out, _ = move.run("cancel", plan)
    assert f"Cancelled: {topic}-0." in out
    assert f"{topic}-1 moves to other brokers" in out
    assert move.throttles().lists == {topic: {LEADER_REPLICAS: "1:1", FOLLOWER_REPLICAS: "1:2"}}
    assert move.throttles().rates[1] == {LEADER_RATE: "100000", FOLLOWER_RATE: "100000"}
    move.admin.reassign({Partition(topic, 1): None})
    move.wait_for_end()
    assert "execute the plan again" in move.run("verify", plan, status=1)[1]
    assert move.throttles() == NOTHING


def test_second_move_needs_additional_and_none_leaves_anything(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1], 2_300_000, partitions=2)
    first, second = move.plan(topic, {0: [2]}, "first"), move.plan(topic, {1: [3]}, "second")
    move.run("execute", first, "--throttle", "90k")  # Kafka lets an answer of 1 MiB through, and then nothing for 11 s
    assert "--additional" in move.run("execute", second, "--throttle", "500k", status=1)[1]
    move.run("execute", second, "--throttle", "20MB", "--additional")
    move.wait_for_end()
    error = move.run("verify", first, status=1)[1]
    assert "other replicas are throttled there: it stays" in error
    move.run("verify", second)
    move.run("verify", first)
    assert move.throttles() == NOTHING


def test_move_that_kafkas_own_tool_began_is_followed_to_its_end(move: MoveCommands) -> None:
    """Nothing was written down of it: the plan tells what the tool has set."""
    topic = filled(move.cluster, move.topic, [1], 4 * MB, partitions=2)
    plan = move.plan(topic, {0: [2], 1: [1, 3]})
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    server = ["--bootstrap-server", move.cluster.bootstrap_servers[0], "--reassignment-json-file", str(plan)]
    move.cluster.java_tool("reassign", tool, [*server, "--execute", "--throttle", "1000000"])
    assert move.throttles().lists
    _, error = move.run("verify", plan, "--watch")
    assert "nothing was written down of this move" in error
    assert move.throttles() == NOTHING


def test_move_may_be_ended_by_kafkas_own_tool(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1], 2 * MB, partitions=1)
    plan = move.plan(topic, {0: [2]})
    move.run("execute", plan, "--throttle", "1MB")
    move.wait_for_end()
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    server = ["--bootstrap-server", move.cluster.bootstrap_servers[0], "--reassignment-json-file", str(plan)]
    move.cluster.java_tool("reassign", tool, [*server, "--verify"])
    # with ZooKeeper a broker hears of its own configuration a moment later
    move.cluster.wait_for("the end of all throttles", lambda: move.throttles() == NOTHING, 10)
    out, _ = move.run("verify", plan)
    assert "Throttle removed" not in out


def test_throttle_is_changed_while_it_moves(move: MoveCommands) -> None:
    """ReassignPartitionsCommandTest: from 1 B/s on, a move ends only when its throttle is raised."""
    topic = filled(move.cluster, move.topic, [1], 2 * MB, partitions=1)
    plan = move.plan(topic, {0: [2]})
    move.run("execute", plan, "--throttle", "1")
    move.run("execute", plan, "--throttle", "50MB")
    assert move.throttles().rates[1][LEADER_RATE] == "50000000"
    move.run("verify", plan, "--watch")
    assert move.throttles() == NOTHING


def test_generated_plan_uses_both_racks_and_moves_little(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [2, 3], 2 * MB, partitions=2)
    topics, plan = move.folder / "topics.json", move.folder / "out.json"
    topics.write_text(json.dumps({"topics": [{"topic": topic}]}))
    options = ("--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3", "--out", str(plan))
    out, _ = move.run("generate", None, *options, "--throttle", "1MB", "--json")
    found = json.loads(out)
    assert [entry["replicas"] for entry in found["current"]["partitions"]] == [[2, 3], [2, 3]]
    assert all(1 in entry["replicas"] for entry in found["proposed"]["partitions"])
    assert found["partitions_to_move"] == 2
    assert found["bytes_to_move"] == pytest.approx(2 * MB, rel=0.1)
    assert found["move_seconds"] == pytest.approx(2, rel=0.1)
    move.run("execute", plan)
    move.run("verify", plan, "--watch")


def test_plans_that_cannot_be_carried_out_are_refused(move: MoveCommands) -> None:
    topic = filled(move.cluster, move.topic, [1, 2], 100_000, partitions=1)

    def refused(plan: Path, status: int = 1) -> str:
        error = move.run("execute", plan, "--throttle", "1MB", status=status)[1]
        assert error.startswith("weir: ") and error.count("\n") == 1
        return error

    assert "there is no topic none" in refused(move.plan("none", {0: [1]}))
    assert f"there is no partition {topic}-7" in refused(move.plan(topic, {7: [1]}))
    assert "there is no broker 9, or it is down" in refused(move.plan(topic, {0: [1, 9]}))
    assert f"takes replicas away from {topic}-0 (from 2 to 1)" in refused(move.plan(topic, {0: [1]}))
    broken = move.folder / "broken.json"
    broken.write_text('{"partitions": [\n  {"topic": "orders" "partition": 0}]}')
    assert "line 2, column 22: this is no JSON: expecting ',' delimiter" in refused(broken, status=2)
    assert move.throttles() == NOTHING
    assert not list(move.folder.glob("*.weir-move"))
