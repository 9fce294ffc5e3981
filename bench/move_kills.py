"""Moves killed at random points, and what one `verify` leaves of their throttles: `python -m bench.move_kills`.

Commands are killed with SIGKILL on real brokers, each at a random moment from its start to after its end. Then whatever
moves may end, `weir move verify` runs once, and the settings of all brokers and topics are read.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from bench.table import Report, parser
from tests.integration.move_commands import MB, MoveCommands
from weir.lab.errors import LabError
from weir.lab.modes import MODES, NEWEST
from weir.lab.produce import fill
from weir.planning.move_throttle import Standing

PARTITIONS = range(4)
SIZE = 1 * MB
MOST_SECONDS = {"execute": 5.5, "execute in steps": 6.0, "execute --finish-by": 7.0, "verify": 2.5, "cancel": 2.5}
"""What is killed, and how long after its start at most."""

COLUMNS = {"killed": 0, "kills": 0, "while it ran": 0, "throttle stood then": 0, "throttles left after one verify": 0}


def main() -> int:
    """Kill, verify, and print what is left; 1 when that is not nothing."""
    options = parser("bench.move_kills", "Kill moves at random points.")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the cluster ({NEWEST.name})")
    options.add_argument("--kills", type=int, default=50, help="in all (50)")
    options.add_argument("--seed", type=int, default=20261122, help="of the random moments")
    chosen = options.parse_args()
    report = Report(chosen.json)
    random = Random(chosen.seed)
    kinds = list(MOST_SECONDS)
    counts = {kind: Counter[str]() for kind in kinds}
    with MODES[chosen.mode].cluster(3) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.create_topic("orders", {partition: [2] for partition in PARTITIONS})
        fill(cluster.bootstrap_servers, "orders", dict.fromkeys(PARTITIONS, SIZE // len(PARTITIONS)))
        move = MoveCommands(cluster, Path(folder))
        for number in range(chosen.kills):
            kind = kinds[number % len(kinds)]
            _kill(move, kind, random, counts[kind])
            left = counts[kind]["left"]
            print(f"{number + 1}/{chosen.kills}: {kind}, {left} left so far", file=sys.stderr, flush=True)
        move.admin.close()
    rows = [(kind, *(counts[kind][name] for name in ("kills", "ran", "stood", "left"))) for kind in kinds]
    report.table(f"{chosen.mode}, seed {chosen.seed}", COLUMNS, rows)
    report.bound("throttles left", float(sum(count["left"] for count in counts.values())), most=0)
    return report.status


def _kill(move: MoveCommands, kind: str, random: Random, count: Counter[str]) -> None:
    at = {state.replicas for state in move.admin.partitions(["orders"]).values()}
    to = 3 if (2,) in at else 2  # a kill may have left some here and some there: these move, too
    plan = move.plan("orders", {partition: (to,) for partition in PARTITIONS})
    plan.with_name(f"{plan.name}.weir-move").unlink(missing_ok=True)
    words: tuple[str, ...] = ()
    match kind:
        case "execute":
            words = ("execute", "--throttle", "1MB")
        case "execute in steps":
            words = ("execute", "--throttle", "1MB", "--reassignment-batch-size", "1")
        case "execute --finish-by":
            deadline = datetime.now().astimezone() + timedelta(seconds=5)
            words = ("execute", "--finish-by", deadline.isoformat())
        case _:
            move.run("execute", plan, "--throttle", "200k" if kind == "cancel" else "5MB")
            if kind == "verify":
                move.wait_for_end()
            words = (kind,)
    with move.start(words[0], plan, *words[1:]) as process:
        time.sleep(random.uniform(0.3, MOST_SECONDS[kind]))
        count["ran"] += process.poll() is None
        process.kill()
    count["kills"] += 1
    count["stood"] += move.throttles() != Standing()
    move.wait_for_end(120)
    with move.start("verify", plan) as verifying:  # 1 where the kill has left partitions that never began
        _, error = verifying.communicate(timeout=60)
    if verifying.returncode and "execute the plan again" not in error:
        raise LabError(f"verify said after a kill of {kind}: {error}")
    left = move.throttles()
    if left != Standing():
        print(f"left by {kind}: {left}", file=sys.stderr, flush=True)
        count["left"] += 1
        move.admin.clear_native_throttle(move.cluster.broker_ids, ["orders"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.move_kills: {error}")
