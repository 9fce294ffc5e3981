"""What a move that keeps to the free part of a link costs producers: `python -m bench.auto`.

`weir move execute --auto` on a link that is shaped with tbf, each way: all that goes to and from broker 1, clients'
requests and its follower's fetches alike. All of it runs in a network namespace of its own, which goes with the bench;
that takes root, or unprivileged user namespaces. While producers write, rounds without a move and rounds with one take
turns. With a round's move, what its follower receives is compared with what producers leave of the link.

In the modes with ZooKeeper clients connect to the same listener as brokers, so the sidecar counts what they move.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.table import Report, parser
from tests.integration.move_commands import MoveCommands
from weir.lab.errors import LabError
from weir.lab.modes import MODES
from weir.lab.produce import LiveProducer, LiveRecord, fill, latency
from weir.planning.move_throttle import Standing
from weir.quota.setting_names import FOLLOWER_RATE, LEADER_RATE

LEADER, FOLLOWER = 1, 2
LIVE, MOVED = "live", "orders"
PARTITIONS = range(10)
LIVE_PARTITIONS = range(8)  # the producer has one request under way for each
RECORD_BYTES = 10_000
BATCH_BYTES = 200_000
WARM_UP_SECONDS = 3.0
SETTLED_SECONDS = 30.0  # the rates, after a move has begun
MOST_RATIO = 1.5
LEAST_USED = 0.85
_INSIDE = "WEIR_BENCH_AUTO_INSIDE"

COLUMNS = {
    "round": 0,
    "records": 0,
    "p50 ms": 2,
    "p99 ms": 2,
    "p99.9 ms": 2,
    "producers MB/s": 2,
    "move MB/s": 2,
    "of what is free": 3,
}


@dataclass(frozen=True, slots=True)
class Round:
    """One round: what was produced, and with a move its bytes/s while that was measured."""

    records: list[LiveRecord]
    seconds: float
    moved: float | None = None

    @property
    def produced(self) -> float:
        """Bytes/s of records."""
        return len(self.records) * RECORD_BYTES / self.seconds

    def used(self, capacity: float) -> float:
        """The part of what producers leave of the link that the move has taken."""
        return (self.moved or 0.0) / (capacity - self.produced)

    def row(self, capacity: float) -> tuple[object, ...]:
        """The row of the table."""
        shown = [1000 * latency(self.records, quantile) for quantile in (0.5, 0.99, 0.999)]
        moved: tuple[object, ...] = ("", "") if self.moved is None else (self.moved / 1e6, self.used(capacity))
        return ("idle" if self.moved is None else "move", len(self.records), *shown, self.produced / 1e6, *moved)


def main() -> int:
    """Measure and print; 1 when a move costs too much, or takes too little."""
    options = parser(
        "bench.auto", "Measure acks=all produce on a shaped link beside a move that keeps to what is free."
    )
    options.add_argument("--mode", choices=MODES, default="zookeeper-2.8", help="of the cluster (zookeeper-2.8)")
    options.add_argument("--rounds", type=int, default=2, help="of each kind (2)")
    options.add_argument("--seconds", type=float, default=20.0, help="measured in each round (20)")
    options.add_argument("--capacity", type=int, default=10_000_000, help="of the link each way, bytes/s (10,000,000)")
    options.add_argument("--stated", type=int, help="what --link-capacity says of it (what it is)")
    options.add_argument("--produce", type=int, default=2_000_000, help="bytes/s of producers (2,000,000)")
    options.add_argument("--followers", type=int, choices=(0, 1), default=1, help="of what is produced, in sync (1)")
    options.add_argument("--response", type=int, help="the sidecars' fetch.response_max_bytes (as the follower asks)")
    options.add_argument("--queue", type=float, default=50.0, help="the longest queue before the link, ms (50)")
    chosen = options.parse_args()
    if _INSIDE not in os.environ:
        return _run_inside()
    _up()
    report = Report(chosen.json)
    tables = {"cluster": {"follow_throttles": True}}
    if chosen.response:
        tables["fetch"] = {"response_max_bytes": chosen.response}
    mode = MODES[chosen.mode]
    size = int(chosen.capacity * (chosen.seconds + SETTLED_SECONDS + 10))
    rounds: list[Round] = []
    with (
        mode.cluster(2, sidecars=True, poll_isr=True, sidecar_tables=tables) as cluster,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        tempfile.TemporaryDirectory() as folder,
    ):
        cluster.create_topic(MOVED, {partition: [LEADER] for partition in PARTITIONS})
        fill(cluster.bootstrap_servers, MOVED, dict.fromkeys(PARTITIONS, size // len(PARTITIONS)))
        replicas = [LEADER, FOLLOWER][: 1 + chosen.followers]
        cluster.create_topic(LIVE, dict.fromkeys(LIVE_PARTITIONS, replicas))
        _shape(cluster.places[LEADER].advertised, chosen.capacity, chosen.queue)
        move = MoveCommands(cluster, Path(folder))
        rate = chosen.produce / RECORD_BYTES
        for number in range(-3, 2 * chosen.rounds + 1):  # the first three are the JVMs' warm-up
            if number >= 0 and number % 2 == 0:
                found = _beside_a_move(move, pool, rate, chosen.seconds, chosen.stated or chosen.capacity)
            else:
                records = pool.submit(_produce, cluster.bootstrap_servers, rate, WARM_UP_SECONDS, chosen.seconds)
                found = Round(records.result(), chosen.seconds)
            if number >= 0:
                rounds.append(found)
            print(f"round {number}: p99 {1000 * latency(found.records, 0.99):.1f} ms", file=sys.stderr, flush=True)
        move.admin.close()
        cluster.check_logs(allow={"Shrinking ISR"})
    response = f", responses of {chosen.response / 1e3:g} KB at most" if chosen.response else ""
    link = f"{chosen.capacity / 1e6:g} MB/s each way, a queue of {chosen.queue:g} ms"
    report.table(f"{mode.name}: a link of {link}{response}", COLUMNS, [one.row(chosen.capacity) for one in rounds])
    idle, moving = ([one for one in rounds if (one.moved is None) == is_idle] for is_idle in (True, False))
    p99s = [statistics.median(latency(one.records, 0.99) for one in some) for some in (moving, idle)]
    report.bound("p99 beside a move / without", p99s[0] / p99s[1], most=MOST_RATIO)
    used = statistics.median(one.used(chosen.capacity) for one in moving)
    report.bound("part of what is free that the move takes", used, least=LEAST_USED)
    return report.status


def _beside_a_move(move: MoveCommands, pool: ProcessPoolExecutor, rate: float, seconds: float, stated: int) -> Round:
    cluster = move.cluster
    plan = move.plan(MOVED, {partition: (LEADER, FOLLOWER) for partition in PARTITIONS})
    admins = [word for sidecar in cluster.sidecars.values() for word in ("--admin", sidecar.admin_address)]
    options = ("--auto", "--link-capacity", str(stated), "--between", f"100k,{stated}", *admins, "--json")
    moved = [(MOVED, partition) for partition in PARTITIONS]
    producing = pool.submit(_produce, cluster.bootstrap_servers, rate, SETTLED_SECONDS + WARM_UP_SECONDS, seconds)
    with move.start("execute", plan, *options) as execute:
        told: list[str] = []
        reader = threading.Thread(target=lambda: told.extend(execute.stdout or ()))
        reader.start()
        with cluster.received_bytes(FOLLOWER, moved, interval=0.25) as received:
            records = producing.result()
            end = received.series().times[-1]
        moving = cluster.admin.reassignments()
        execute.terminate()
        execute.wait(60)
        reader.join()
        error = execute.stderr.read() if execute.stderr is not None else ""
    if not moving:
        raise LabError(f"The move had ended before all was measured: {error or told[-1:]}")
    _show_rates(told)
    series = received.series()
    rate_seen = (series.total_at(end) - series.total_at(end - seconds)) / seconds
    move.run("cancel", plan)
    if move.throttles() != Standing():
        raise LabError("A throttle is left.")
    cluster.reassign({partition: [LEADER] for partition in moved}, 60)  # those that had ended
    cluster.wait_for("the moved replicas' end", lambda: not any(cluster.segments(*one, FOLLOWER) for one in moved), 90)
    return Round(records, seconds, rate_seen)


def _show_rates(told: list[str]) -> None:
    """Show on stderr how the rates of the leader and the follower went, a figure for each second."""
    ticks = [msgspec.json.decode(line) for line in told if line.startswith("{")]
    for broker, setting in ((LEADER, LEADER_RATE), (FOLLOWER, FOLLOWER_RATE)):
        rates = [
            f"{one['rate'] / 1e6:.1f}"
            for tick in ticks
            for one in tick.get("rates", ())
            if (one["broker"], one["setting"]) == (broker, setting)
        ]
        print(f"  {setting} of broker {broker}, MB/s: {' '.join(rates)}", file=sys.stderr, flush=True)


def _produce(servers: list[str], rate: float, before: float, seconds: float) -> list[LiveRecord]:
    """Produce, and return the records of the last seconds."""
    gc.collect()
    gc.disable()
    with LiveProducer(
        servers, LIVE, list(LIVE_PARTITIONS), rate=rate, message_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES
    ) as producer:
        time.sleep(before + seconds)
    gc.enable()
    if producer.failed:
        raise LabError(f"{producer.failed} records were not acknowledged.")
    return [record for record in producer.acked if record.number >= rate * before]


def _run_inside() -> int:
    """Run all of this again in a network namespace of its own."""
    unshare = shutil.which("unshare")
    if unshare is None:
        raise LabError("unshare (util-linux) is not installed.")
    flags = ["--net"] if os.geteuid() == 0 else ["--net", "--map-root-user"]
    command = [unshare, *flags, sys.executable, "-m", "bench.auto", *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode


def _up() -> None:
    # BBR takes what it has learned of loopback for the link's: then far less passes than the link carries.
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    _run("ip", "link", "set", "lo", "mtu", "1500", "up")


def _shape(port: int, capacity: int, queue_ms: float) -> None:
    """Shape what goes to and comes from a port of 127.0.0.1: a tbf for each way. All else passes as it is.

    The follower's sidecar has the same port on another address. What passes it must not pass the link once more.
    """
    _run("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
    for number, which, address in ((1, "sport", "src"), (2, "dport", "dst")):
        shaped = ["tbf", "rate", f"{capacity * 8}bit", "burst", "16kb", "latency", f"{queue_ms}ms"]
        _run(
            "tc",
            "class",
            "add",
            "dev",
            "lo",
            "parent",
            "1:",
            "classid",
            f"1:{number}",
            "htb",
            "rate",
            "10gbit",
            "quantum",
            "1514",
        )
        _run("tc", "qdisc", "add", "dev", "lo", "parent", f"1:{number}", "handle", f"{number}0:", *shaped)
        match = ["u32", "match", "ip", which, str(port), "0xffff", "match", "ip", address, "127.0.0.1/32"]
        _run(
            "tc",
            "filter",
            "add",
            "dev",
            "lo",
            "parent",
            "1:",
            "protocol",
            "ip",
            "prio",
            str(number),
            *match,
            "flowid",
            f"1:{number}",
        )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"bench.auto: {error}")
