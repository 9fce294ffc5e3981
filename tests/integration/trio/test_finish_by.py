# SPDX-License-Identifier: Apache-2.0
"""`weir move --finish-by` and `--auto` on real brokers, whose sidecars follow Kafka's own throttle."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from tests.integration.move_commands import MB, MoveCommands, json_of
from tests.integration.moves import LONG, filled
from tests.integration.trio.throttles import on
from tests.throttle_names import LEADER_RATE
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.lab.produce import LiveProducer
from weir.planning.move_throttle import Standing

pytestmark = [pytest.mark.integration, on(NEWEST.name)]

SECONDS = 24.0
SIZE = 15 * MB


@pytest.fixture
def move(cluster: Cluster, tmp_path: Path) -> Iterator[MoveCommands]:
    commands = MoveCommands(cluster, tmp_path)
    yield commands
    commands.admin.close()


def test_move_ends_at_its_deadline_while_produce_changes(move: MoveCommands) -> None:
    """After a third of the time producers begin to write."""
    topic = filled(move.cluster, move.topic, [1], SIZE, partitions=2)
    plan = move.plan(topic, {0: [1, 2], 1: [1, 2]})
    deadline = datetime.now().astimezone() + timedelta(seconds=SECONDS)
    begun = monotonic()
    options = ("--finish-by", deadline.isoformat(), "--between", "100k,20MB", "--json")
    with move.start("execute", plan, *options) as execute:
        sleep(SECONDS / 3 - (monotonic() - begun))
        standing = move.throttles().rates
        with LiveProducer(move.cluster.bootstrap_servers, topic, [0, 1], rate=30, message_bytes=10_000):
            move.admin.wait_for_reassignments(2 * SECONDS)
            took = monotonic() - begun
        out, error = execute.communicate(timeout=60)
    assert execute.returncode == 0, error
    rates = list(dict.fromkeys(str(line["throttle"]) for line in json_of(out) if "seconds_late" in line))
    print(f"ended after {took:.1f} s of {SECONDS:g}, at {', '.join(rates)} bytes/s")
    assert standing[1][LEADER_RATE] == standing[2][LEADER_RATE] == rates[0]
    assert SIZE / SECONDS < int(rates[0]) < 2 * SIZE / SECONDS
    assert len(rates) > 1
    assert took == pytest.approx(SECONDS, rel=0.2)  # within 4 % on a machine that does nothing else
    assert move.throttles() == Standing()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_move_ends_in_its_time_whatever_producers_do(move: MoveCommands, seed: int) -> None:
    """Producers have three rates, each from nothing to half of what the move needs; the last begins 20 s before the
    deadline at the latest: what comes in the last ten seconds cannot be planned for.
    """
    seconds, needed, random = 75.0, 600_000, Random(seed)
    topic = filled(move.cluster, move.topic, [1], int(needed * seconds), partitions=2)
    plan = move.plan(topic, {0: [1, 2], 1: [1, 2]})
    moments = [0.0, *sorted(random.uniform(5.0, seconds - 20.0) for _ in range(2))]
    deadline = datetime.now().astimezone() + timedelta(seconds=seconds)
    begun = monotonic()
    with move.start("execute", plan, "--finish-by", deadline.isoformat()) as execute:
        with ExitStack() as stack:
            for moment in moments:
                sleep(max(0.0, moment - (monotonic() - begun)))
                stack.close()
                rate = random.uniform(0.0, 0.5) * needed / 10_000
                servers = move.cluster.bootstrap_servers
                stack.enter_context(LiveProducer(servers, topic, [0, 1], rate=rate, message_bytes=10_000))
            move.admin.wait_for_reassignments(2 * seconds)
            took = monotonic() - begun
        _, error = execute.communicate(timeout=120)
    assert execute.returncode == 0, error
    print(f"ended after {took:.1f} s of {seconds:g}")
    assert took == pytest.approx(seconds, rel=0.03)
    assert move.throttles() == Standing()


def test_move_that_was_killed_is_taken_up_by_whoever_watches(move: MoveCommands) -> None:
    """Producers begin after the kill: whoever watches then lowers the leader's rate."""
    cluster = move.cluster
    topic = filled(cluster, move.topic, [1], 60 * MB, partitions=2, batch_bytes=LONG)
    live = f"{topic}-live"
    cluster.create_topic(live, {partition: [1, 2] for partition in range(4)})
    plan = move.plan(topic, {0: [1, 2], 1: [1, 2]})
    admins = [word for sidecar in cluster.sidecars.values() for word in ("--admin", sidecar.admin_address)]
    options = ("--auto", "--link-capacity", "900k", "--between", "100k,800k", *admins, "--json")
    with move.start("execute", plan, *options) as execute:
        cluster.wait_for("the move", lambda: bool(move.admin.reassignments()), 30)
        execute.kill()
    assert move.throttles().rates[1][LEADER_RATE] == "800000"
    with (
        LiveProducer(cluster.bootstrap_servers, live, list(range(4)), rate=60, message_bytes=10_000),
        move.start("verify", plan, "--watch", *admins, "--json") as verify,
    ):
        cluster.wait_for("a lower rate", lambda: int(move.throttles().rates[1][LEADER_RATE]) < 700_000, 40)
        verify.kill()
    move.run("execute", plan, "--throttle", "50MB")
    move.run("verify", plan, "--watch")
    assert move.throttles() == Standing()
