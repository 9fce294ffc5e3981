"""`weir move --finish-by` on real brokers, whose sidecars follow Kafka's own throttle."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest

from lab.cluster import Cluster
from lab.modes import MODES
from lab.produce import LiveProducer
from planning.move_throttle import Standing
from tests.integration.move_commands import MB, MoveCommands, json_of
from tests.integration.moves import filled
from tests.throttle_names import LEADER_RATE

pytestmark = pytest.mark.integration

SECONDS = 32.0
SIZE = 20 * MB


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    followed = {"cluster": {"follow_throttles": True}}
    with MODES["kraft-4.1"].cluster(2, sidecars=True, poll_isr=True, sidecar_tables=followed) as cluster:
        yield cluster
        cluster.check_logs()


@pytest.fixture
def move(cluster: Cluster, tmp_path: Path) -> Iterator[MoveCommands]:
    commands = MoveCommands(cluster, tmp_path)
    yield commands
    commands.admin.clear_native_throttle(cluster.broker_ids, ())
    commands.admin.close()


def test_move_ends_at_its_deadline_while_produce_changes(move: MoveCommands) -> None:
    """Left after a third of the time, as if killed, and taken up again by `verify`; producers then write more."""
    topic = filled(move.cluster, move.topic, [1], SIZE, partitions=2)
    plan = move.plan(topic, {0: [1, 2], 1: [1, 2]})
    deadline = datetime.now().astimezone() + timedelta(seconds=SECONDS)
    begun = monotonic()
    options = ("--finish-by", deadline.isoformat(), "--between", "100k,20MB", "--json")
    with move.start("execute", plan, *options) as first:
        sleep(SECONDS / 3 - (monotonic() - begun))
        first.kill()
        out = first.communicate()[0]
    rates = move.throttles().rates
    begun_at = next(line["throttle"] for line in json_of(out) if "begun" in line)
    assert rates[1][LEADER_RATE] == rates[2][LEADER_RATE] == str(begun_at)
    assert SIZE / SECONDS < int(str(begun_at)) < 2 * SIZE / SECONDS
    with LiveProducer(move.cluster.bootstrap_servers, topic, [0, 1], rate=30, message_bytes=10_000):
        with move.start("verify", plan, "--watch", *options) as second:
            move.admin.wait_for_reassignments(2 * SECONDS)
            took = monotonic() - begun
            out, error = second.communicate(timeout=60)
        assert second.returncode == 0, error
    changed = [line["throttle"] for line in json_of(out) if "seconds_late" in line]
    print(f"ended after {took:.1f} s of {SECONDS:g}; rates {begun_at}, {list(dict.fromkeys(map(json.dumps, changed)))}")
    assert took == pytest.approx(SECONDS, rel=0.1)
    assert len(set(map(json.dumps, changed))) > 1
    assert move.throttles() == Standing()
