# SPDX-License-Identifier: Apache-2.0
"""What the tests of moves against a cluster in memory share."""

from pathlib import Path

from tests.fakes.move_cluster import FakeCluster
from weir.control.move_execution import Execution, Orders
from weir.control.move_journal import JournalFile
from weir.planning.assignment import Brokers, Partition
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import ReassignmentPlan

P0, P1, P2 = (Partition("orders", number) for number in range(3))
NOTHING = Standing()


def journal_in(folder: Path, name: str = "plan.json", plan_id: str = "plan0001") -> JournalFile:
    (folder / name).write_text("the plan")
    return JournalFile(folder / name, plan_id)


def plan(**brokers: Brokers) -> ReassignmentPlan:
    return ReassignmentPlan({Partition("orders", int(name[1:])): replicas for name, replicas in brokers.items()}, {})


def three() -> FakeCluster:
    return FakeCluster({P0: (1,), P1: (1,), P2: (1,)})


def execute(
    cluster: FakeCluster, what: ReassignmentPlan, file: JournalFile, orders: Orders | None = None
) -> list[Partition]:
    run = Execution(cluster, what, file, orders or Orders(throttle=100))
    run.check()
    run.throttle()
    begun = run.start()
    run.move_logs(begun)
    return begun
