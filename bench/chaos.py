"""Faults of every kind on real brokers, and nothing lost: `python -m bench.chaos --minutes 30 --seed 1`.

Three brokers with a sidecar each, ingress and egress. A topic moves from broker to broker for the whole run, under
throttles on both sides that change all the while. Records with acks=all go into it, and into topics with a replica on
every broker and a min ISR of 2. Meanwhile sidecars are killed, stopped for seconds and reloaded, throttles are set,
patched and removed, and brokers are killed and stopped in order, one at a time: what, where and when is drawn from the
seed. In KRaft mode broker 1 is the only controller and is left alone, its sidecar is not.

In the end every acknowledged record must be read exactly once, in its order and whole; replicas must be the same bytes;
nothing may be under-replicated; and no log may complain of anything that the faults themselves do not cause.

Below 0.11 three things are Kafka's own, and different. Producers are not idempotent: records may come twice and behind
later ones. Followers truncate to the high watermark that they know with each leader epoch (before KIP-101), so that one
that leads before it has fetched again has lost what was acknowledged: there a move keeps each partition's leader, and a
broker is hit between two moves, when nothing else was for three seconds. And a move waits until the replicas that the
last one removed are gone (see Mover).
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench.chaos_checks import (
    History,
    broker_complaints,
    differing_replicas,
    leader_starts,
    sidecar_complaints,
    under_replicated,
)
from bench.chaos_faults import LIVE, LIVE_PARTITIONS, MOVED, MOVED_PARTITIONS, Kind, alike, schedule
from bench.chaos_lanes import FIRST_VERSION_OF_LEADER_EPOCHS, Lanes, Target
from bench.chaos_records import RecordProducer, Records, Verdict, account, batches, read_back, with_producers
from bench.chaos_watch import ClusterWatch, Mover, SidecarWatch, Window
from bench.table import Report, parser
from weir.control.cluster_admin import Partition
from weir.control.errors import ControlError
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import MODES, NEWEST, Mode
from weir.lab.settings import SidecarOptions, has_record_batches

_FIRST_RATE: Final = 4_000_000  # of both sides: in the files, where a restarted sidecar finds it
_PARTITION_BYTES: Final = 3_000_000  # of the topic that moves
_LIVE_RATE: Final = 30.0  # records/s of each live partition
_LIVE_BYTES: Final = 1_000
_MOVED_RATE: Final = 2.0  # records/s of each partition of the topic that moves
_LEAST_RATED: Final = 200_000  # bytes/s: below that a batch more or less is all that is seen
_PROGRESS_SECONDS: Final = 10.0
_END_SECONDS: Final = 300.0  # for everything to be up, moved and acknowledged
# A killed follower truncates to the high watermark on its disk: 5 s old by default, and then all is moved again.
_PROPERTIES: Final = {"replica.high.watermark.checkpoint.interval.ms": 500}


class ChaosError(LabError):
    """A run that found what must not be; `violations` are sentences."""

    def __init__(self, violations: Sequence[str]) -> None:
        self.violations = list(violations)
        super().__init__(f"{len(self.violations)} violation(s):\n" + "\n".join(self.violations))


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is told."""

    mode: Mode
    seconds: float
    seed: int
    poll_isr: bool


class Run:
    """One run on a cluster that has started."""

    def __init__(self, cluster: Cluster, options: Options, report: Report) -> None:
        self._cluster = cluster
        self._options = options
        self._report = report
        self.violations: list[str] = []
        self._verdict = Verdict()
        self._compared = 0
        self._excused: Counter[str] = Counter()
        self._warned: Counter[str] = Counter()
        self._began = 0.0
        self._records = Records()
        self._idempotent = not options.mode.zookeeper or has_record_batches(options.mode.level)
        spared = set() if options.mode.zookeeper else {cluster.controller}
        self._faults = schedule(
            options.seed,
            options.seconds,
            sidecars=cluster.broker_ids,
            brokers=[broker_id for broker_id in cluster.broker_ids if broker_id not in spared],
        )
        throttle = SidecarOptions(throttle=alike(_FIRST_RATE, _FIRST_RATE), poll_isr=options.poll_isr)
        targets = {broker_id: Target(cluster, broker_id, throttle) for broker_id in cluster.broker_ids}
        fetch_version = options.mode.fetch_version
        gate = threading.Lock() if fetch_version < FIRST_VERSION_OF_LEADER_EPOCHS else None
        self._lanes = Lanes(cluster, targets, self._faults, self.violations, report.say, gate)
        self._mover = Mover(cluster, gate)
        self._watch = ClusterWatch(cluster)
        self._rates = SidecarWatch(targets)
        self._partitions = [
            *(Partition(topic, number) for topic in LIVE for number in range(LIVE_PARTITIONS)),
            *(Partition(MOVED, number) for number in range(MOVED_PARTITIONS)),
        ]

    def run(self) -> None:
        """Do it all; `violations` tell what was wrong. Raises LabError when the run cannot be ended."""
        self._create()
        rates = {one: _MOVED_RATE if one.topic == MOVED else _LIVE_RATE for one in self._partitions}
        producer = self._producer().run(rates, _LIVE_BYTES)
        with producer, self._mover, self._watch, self._rates:
            self._lanes.start()
            self._began = time.monotonic()
            shown = (self._began, self._records.count)
            while self._lanes.seconds < self._options.seconds and not self._records.fatal:
                time.sleep(min(_PROGRESS_SECONDS, max(0.1, self._options.seconds - self._lanes.seconds)))
                shown = self._show_progress(shown)
            self._lanes.finish(2 * _END_SECONDS)
            self._lanes.lift_throttles()
            self._report.say(f"{self._lanes.seconds:6.1f} s  all is up and unthrottled; the last move ends")
            self._rates.stop()
            self._mover.end_last(_END_SECONDS)
            producer.finish(_END_SECONDS)
            self._cluster.wait_for("replicas in sync", lambda: not self._behind(), _END_SECONDS, 0.5)
        self._check()
        self._show_figures()

    def abandon(self) -> None:
        """Begin nothing more; harmless when the run has come to its end."""
        self._lanes.abandon()

    def _create(self) -> None:
        ids = list(self._cluster.broker_ids)
        turned = {number: ids[number % 3 :] + ids[: number % 3] for number in range(LIVE_PARTITIONS)}
        for topic in LIVE:
            self._cluster.create_topic(topic, turned, {"min.insync.replicas": "2"})
        self._cluster.create_topic(MOVED, dict.fromkeys(range(MOVED_PARTITIONS), ids[:2]))
        random = Random(self._options.seed)
        filler = self._producer(compression="lz4", linger=50)
        for number in range(MOVED_PARTITIONS):
            left = _PARTITION_BYTES
            while left > 0:
                size = round(random.choices([random.uniform(1, 3), 10, 40, 150], [70, 20, 8, 2])[0] * 1000)
                filler.send(Partition(MOVED, number), size)
                left -= size
        filler.finish(_END_SECONDS)
        self._records.begin()
        self._cluster.assert_no_native_throttle()

    def _producer(self, *, compression: str = "none", linger: int = 5) -> RecordProducer:
        servers = self._cluster.bootstrap_servers
        return RecordProducer(
            servers, self._records, idempotent=self._idempotent, compression=compression, linger=linger
        )

    def _behind(self) -> list[str]:
        return under_replicated(self._cluster.admin.partitions())

    def _check(self) -> None:
        starts = leader_starts(_lines(broker.log for broker in self._cluster.brokers.values()))
        history = History(self._lanes.happened, self._mover.moves, starts)
        found = self.violations
        found += [f"the producer gave up: {error}" for error in self._records.fatal]
        self._verdict = self._read()
        found += self._verdict.violations(self._idempotent)
        differing, self._compared = differing_replicas(self._cluster, self._cluster.admin.partitions([MOVED, *LIVE]))
        found += differing
        found += self._behind()
        complaints, self._excused = broker_complaints(self._cluster.bad_signs(), history)
        found += complaints
        for broker_id, sidecar in self._cluster.sidecars.items():
            refused = sum(
                one.fault.kind is Kind.RELOAD_BROKEN and one.fault.target == broker_id for one in history.happened
            )
            complaints, warned = sidecar_complaints(broker_id, sidecar.log, refused)
            found += complaints
            self._warned += warned
        found += [
            f"sidecar {broker_id}: {count:.0f} requests passed undecoded ({reason})"
            for (broker_id, reason), count in self._rates.passed.items()
        ]
        found += [
            f"sidecar {window.broker_id}, {window.side} side: {window.size:,.0f} bytes in {window.seconds:.1f} s at a "
            f"quota of {window.quota:,.0f}, at most {window.allowed:,.0f} are allowed"
            for window in self._rates.windows
            if window.size > window.allowed
        ]

    def _read(self) -> Verdict:
        """Read all, again for a while where something is missing: a new leader shows its last records later."""
        deadline = time.monotonic() + 30
        while True:
            read = read_back(self._cluster.bootstrap_servers, self._partitions)
            states = self._cluster.admin.partitions([MOVED, *LIVE])
            for partition, entries in read.items():
                segments = self._cluster.segments(*partition, states[partition].leader)
                log = [batch for segment in segments for batch in batches(segment.read_bytes())]
                read[partition] = with_producers(entries, log)
            verdict = account(self._records.sent, self._records.acked, read)
            if not verdict.lost or time.monotonic() > deadline:
                return verdict
            time.sleep(1)

    def _show_progress(self, shown: tuple[float, int]) -> tuple[float, int]:
        """Print how far it is; takes and returns (when, how many records were acknowledged by then)."""
        now, acked = time.monotonic(), self._records.count
        rate = (acked - shown[1]) / max(0.1, now - shown[0])
        left = max(0.0, self._options.seconds - self._lanes.seconds)
        faults = f"{len(self._lanes.happened)} of {len(self._faults)} faults"
        print(
            f"{self._lanes.seconds:6.1f} s  -- {left:.0f} s left, {faults}, {acked:,} acked ({rate:.0f}/s), "
            f"{len(self._mover.finished)} moves, {len(self.violations)} violations",
            file=sys.stderr,
            flush=True,
        )
        return now, acked

    def _show_figures(self) -> None:
        hit = Counter(one.fault.kind for one in self._lanes.happened)
        self._report.table("faults", {"fault": 0, "times": 0}, [*hit.most_common(), ("all", hit.total())])
        gap, since = self._records.longest_gap
        moves = self._mover.finished
        verdict = self._verdict
        rows: list[tuple[str, object]] = [
            ("records acknowledged", verdict.acked),
            ("records read back", verdict.read),
            ("lost", verdict.lost),
            ("read twice", verdict.duplicates if self._idempotent else f"{verdict.duplicates} (allowed here)"),
            ("sent again under another producer id", verdict.sent_again),
            ("out of order", verdict.disordered if self._idempotent else f"{verdict.disordered} (allowed here)"),
            ("given up by the client, not acknowledged", len(self._records.failed)),
            ("longest time without an acknowledgement, s", f"{gap:.1f}, from {since - self._began:.0f} s on"),
            ("moves that ended", len(moves)),
            ("MB moved", sum(move.size for move in moves) / 1e6),
            ("MB compared byte for byte", self._compared / 1e6),
            ("s with a live partition under-replicated", self._watch.under_replicated_seconds),
            ("longest of these, s", self._watch.longest_under_replicated),
            ("throttles lifted for replicas behind for a minute", self._lanes.reliefs),
            ("largest sidecar, MB", self._rates.peak_bytes / 1e6),
            *_rate_rows(self._rates.windows),
        ]
        self._report.table("figures", {"figure": 1, "value": 1}, rows)
        expected = [*self._excused.items(), *((f"sidecars: {event}", count) for event, count in self._warned.items())]
        self._report.table("lines in logs that the faults cause", {"line": 0, "times": 0}, expected)
        self._report.bound("violations", len(self.violations), most=0)


def _lines(logs: Iterable[Path]) -> Iterator[str]:
    for log in logs:
        with log.open(errors="replace") as lines:
            yield from lines


def _rate_rows(windows: Sequence[Window]) -> list[tuple[str, object]]:
    """What went through while a throttle stood still, as parts of its quota."""
    rated = [window for window in windows if window.quota >= _LEAST_RATED]
    used = [window.ratio for window in rated if window.ratio > 0.5]
    return [
        ("throttles that stood still for 3 s and more", len(windows)),
        ("of these at 0.2 MB/s and more", len(rated)),
        (
            "highest mean of 3 s and more of these, x quota",
            f"{max((window.ratio for window in rated), default=0.0):.3f}",
        ),
        (
            "median of the highest of each that used half of it",
            f"{statistics.median(used) if used else 0.0:.3f} ({len(used)})",
        ),
    ]


def main() -> int:
    """Run it; 1 when anything is violated."""
    options = parser("bench.chaos", "Faults of every kind on real brokers, and nothing lost.")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the cluster ({NEWEST.name})")
    options.add_argument("--minutes", type=float, default=3.0, help="how long faults go on (3)")
    options.add_argument("--seed", type=int, default=1, help="of the faults (1)")
    options.add_argument("--poll-isr", action="store_true", help="have the sidecars ask for the ISR, by [cluster]")
    chosen = options.parse_args()
    mode = MODES[chosen.mode]
    report = Report(chosen.json)
    report.say(f"{mode.name} (Fetch v{mode.fetch_version}), {chosen.minutes:g} minutes, seed {chosen.seed}\n")
    throttle = alike(_FIRST_RATE, _FIRST_RATE)
    with mode.cluster(
        sidecars=True, throttle=throttle, poll_isr=chosen.poll_isr, properties=_PROPERTIES, heap_mb=320
    ) as cluster:
        run = Run(cluster, Options(mode, chosen.minutes * 60, chosen.seed, chosen.poll_isr), report)
        try:
            run.run()
        finally:
            run.abandon()
        if run.violations:
            raise ChaosError(run.violations)  # within the cluster's block, so that its logs stay
    return report.status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, ControlError) as error:
        sys.exit(f"bench.chaos: {error}")
