"""How near to its deadline a move ends while produce changes: `python -m bench.finish_by`.

`weir move execute --finish-by` on real brokers, whose sidecars follow Kafka's own throttle. Producers write to the
partitions that move, at three rates one after another: each is drawn from nothing to half of what the move itself
needs, at moments that are drawn too. The rate changes for the last time a fifth of the time before the deadline at the
latest, as what comes in the last ten seconds cannot be planned for.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from time import monotonic, sleep

from bench.table import Report, parser
from tests.integration.move_commands import MoveCommands, json_of
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import MODES, NEWEST
from weir.lab.produce import LiveProducer, fill
from weir.planning.move_throttle import Standing

PARTITIONS = range(2)
MESSAGE_BYTES = 10_000
MOST_OFF = 0.03

COLUMNS = {"run": 0, "produce, KB/s from second": 0, "ended after s": 2, "off": 4, "rates set, KB/s": 0}


def main() -> int:
    """Move and print; 1 when a move ends further from its deadline than it may."""
    options = parser("bench.finish_by", "Measure moves with a deadline.")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the cluster ({NEWEST.name})")
    options.add_argument("--runs", type=int, default=4, help="moves (4)")
    options.add_argument("--seconds", type=float, default=75.0, help="until the deadline (75)")
    options.add_argument("--rate", type=int, default=600_000, help="what the move itself needs, bytes/s (600,000)")
    options.add_argument("--seed", type=int, default=1, help="of what producers write")
    chosen = options.parse_args()
    report = Report(chosen.json)
    random = Random(chosen.seed)
    followed = {"cluster": {"follow_throttles": True}}
    rows, worst = [], 0.0
    with (
        MODES[chosen.mode].cluster(2, sidecars=True, poll_isr=True, sidecar_tables=followed) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        move = MoveCommands(cluster, Path(folder))
        for number in range(1, chosen.runs + 1):
            produce = _drawn(random, chosen.seconds, chosen.rate)
            took, rates = _measure(move, f"orders-{number}", chosen.seconds, chosen.rate, produce)
            off = took / chosen.seconds - 1
            worst = max(worst, abs(off))
            print(f"run {number}: {off:+.2%}", file=sys.stderr, flush=True)
            written = ", ".join(f"{rate / 1000:.0f} from {moment:.0f}" for moment, rate in produce)
            rows.append((number, written, took, off, ", ".join(f"{rate / 1000:.0f}" for rate in rates)))
        move.admin.close()
        cluster.check_logs()
    report.table(f"{chosen.mode}: {chosen.seconds:g} s, {chosen.rate / 1000:g} KB/s to move", COLUMNS, rows)
    report.bound("largest part of the time by which a move ended early or late", worst, most=MOST_OFF)
    return report.status


def _drawn(random: Random, seconds: float, rate: int) -> list[tuple[float, float]]:
    """Draw when producers begin to write at which rate (bytes/s), the first at once."""
    calm = seconds - max(20.0, seconds / 5)
    moments = sorted(random.uniform(5.0, calm) for _ in range(2))
    return [(moment, rate * random.uniform(0.0, 0.5)) for moment in (0.0, *moments)]


def _measure(
    move: MoveCommands, topic: str, seconds: float, rate: int, produce: list[tuple[float, float]]
) -> tuple[float, list[int]]:
    """Move one topic of its own, and return how long it took (s) and the rates that were set."""
    cluster = move.cluster
    cluster.create_topic(topic, {partition: [1] for partition in PARTITIONS})
    size = int(rate * seconds) // len(PARTITIONS)
    fill(cluster.bootstrap_servers, topic, dict.fromkeys(PARTITIONS, size), message_bytes=MESSAGE_BYTES)
    plan = move.plan(topic, {partition: (1, 2) for partition in PARTITIONS}, topic)
    deadline = datetime.now().astimezone() + timedelta(seconds=seconds)
    begun = monotonic()
    with move.start("execute", plan, "--finish-by", deadline.isoformat(), "--json") as execute:
        with ExitStack() as stack:
            for moment, written in produce:
                sleep(max(0.0, moment - (monotonic() - begun)))
                stack.close()
                stack.enter_context(_producer(cluster, topic, written))
            _wait_for_end(move, topic, begun + 2 * seconds)
            took = monotonic() - begun
        out, error = execute.communicate(timeout=120)
    if execute.returncode or move.throttles() != Standing():
        raise LabError(f"execute ended with {execute.returncode}: {error}")
    return took, list(dict.fromkeys(int(str(line["throttle"])) for line in json_of(out) if "seconds_late" in line))


def _producer(cluster: Cluster, topic: str, rate: float) -> LiveProducer:
    records = rate / MESSAGE_BYTES
    return LiveProducer(cluster.bootstrap_servers, topic, list(PARTITIONS), rate=records, message_bytes=MESSAGE_BYTES)


def _wait_for_end(move: MoveCommands, topic: str, until: float) -> None:
    """Wait until the move that is begun in a moment has ended."""
    while any(state.replicas != (1, 2) for state in move.admin.partitions([topic]).values()) or (
        move.admin.reassignments()
    ):
        if monotonic() > until:
            raise LabError("The move takes more than twice its time.")
        sleep(0.1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.finish_by: {error}")
