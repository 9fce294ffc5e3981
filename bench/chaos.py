# SPDX-License-Identifier: Apache-2.0
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

import argparse
import statistics
import threading
import time
from collections import Counter
from itertools import chain
from random import Random
from typing import Final

from bench.table import Report, parser, progress, run
from tests.chaos.checks import (
    History,
    broker_complaints,
    differing_replicas,
    leader_starts,
    sidecar_complaints,
    under_replicated,
)
from tests.chaos.faults import LIVE, LIVE_PARTITIONS, MOVED, MOVED_PARTITIONS, Kind, alike, schedule
from tests.chaos.lanes import FIRST_VERSION_OF_LEADER_EPOCHS, Lanes, Target
from tests.chaos.records import RecordProducer, Records, Verdict, account, batches, read_back, with_producers
from tests.chaos.watch import ClusterWatch, Mover, SidecarWatch
from weir.control.cluster_admin import Partition
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import MODES, NEWEST, Mode
from weir.lab.settings import SidecarOptions, has_record_batches

_FIRST_RATE: Final = 4_000_000  # of both sides: in the files, where a restarted sidecar finds it
_PARTITION_BYTES: Final = 3_000_000  # of the topic that moves
_LIVE_RATE: Final = 30.0  # records/s of each live partition
_MOVED_RATE: Final = 2.0  # records/s of each partition of the topic that moves
_RECORD_BYTES: Final = 1_000
_LEAST_RATED: Final = 200_000  # bytes/s: below that a batch more or less is all that is seen
_PROGRESS_SECONDS: Final = 10.0
_END_SECONDS: Final = 300.0  # for everything to be up, moved and acknowledged
_READ_SECONDS: Final = 30.0  # a new leader shows its last records later
# A killed follower truncates to the high watermark on its disk: 5 s old by default, and then all is moved again.
_PROPERTIES: Final = {"replica.high.watermark.checkpoint.interval.ms": 500}


class Run:
    """One run on a cluster that has started."""

    def __init__(self, cluster: Cluster, mode: Mode, asked: argparse.Namespace, report: Report) -> None:
        self._cluster = cluster
        self._seed = asked.seed
        self._seconds = 60 * asked.minutes
        self._report = report
        self.violations: list[str] = []
        self._began = 0.0
        self._records = Records()
        self._idempotent = not mode.zookeeper or has_record_batches(mode.level)
        spared = set() if mode.zookeeper else {cluster.controller}
        brokers = [broker_id for broker_id in cluster.broker_ids if broker_id not in spared]
        self._faults = schedule(asked.seed, self._seconds, sidecars=cluster.broker_ids, brokers=brokers)
        throttle = SidecarOptions(throttle=alike(_FIRST_RATE, _FIRST_RATE), poll_isr=asked.poll_isr)
        targets = {broker_id: Target(cluster, broker_id, throttle) for broker_id in cluster.broker_ids}
        gate = threading.Lock() if mode.fetch_version < FIRST_VERSION_OF_LEADER_EPOCHS else None
        self._lanes = Lanes(cluster, targets, self._faults, self.violations, report.say, gate)
        self._mover = Mover(cluster, gate)
        self._watch = SidecarWatch(targets)
        self._behind_watch = ClusterWatch(cluster)
        self._rates = {Partition(topic, number): _LIVE_RATE for topic in LIVE for number in range(LIVE_PARTITIONS)}
        self._rates |= {Partition(MOVED, number): _MOVED_RATE for number in range(MOVED_PARTITIONS)}

    def run(self) -> None:
        """Do it all; `violations` tell what was wrong. Raises LabError when the run cannot be ended."""
        self._create()
        producer = self._producer(rates=self._rates, size=_RECORD_BYTES)
        with producer, self._mover, self._watch, self._behind_watch:
            self._lanes.start()
            self._began = time.monotonic()
            while (left := self._seconds - self._lanes.seconds) > 0 and not self._records.fatal:
                time.sleep(min(_PROGRESS_SECONDS, max(0.1, left)))
                progress(
                    f"{self._lanes.seconds:6.1f} s  -- {len(self._lanes.happened)} of {len(self._faults)} faults, "
                    f"{self._records.count:,} acked, {len(self._mover.finished)} moves, "
                    f"{len(self.violations)} violations"
                )
            self._lanes.finish(2 * _END_SECONDS)
            self._lanes.lift_throttles()
            self._lanes.say("all is up and unthrottled; the last move ends")
            self._watch.stop()
            self._mover.end_last(_END_SECONDS)
            producer.finish(_END_SECONDS)
            self._cluster.wait_for("replicas in sync", lambda: not self._behind(), _END_SECONDS, 0.5)
        self._check()

    def abandon(self) -> None:
        """Begin nothing more; harmless when the run has come to its end."""
        self._lanes.abandon()

    def _create(self) -> None:
        ids = list(self._cluster.broker_ids)
        turned = {number: ids[number % 3 :] + ids[: number % 3] for number in range(LIVE_PARTITIONS)}
        for topic in LIVE:
            self._cluster.create_topic(topic, turned, {"min.insync.replicas": "2"})
        self._cluster.create_topic(MOVED, dict.fromkeys(range(MOVED_PARTITIONS), ids[:2]))
        random = Random(self._seed)
        filler = self._producer(**{"compression.type": "lz4", "linger.ms": 50})
        for number in range(MOVED_PARTITIONS):
            left = _PARTITION_BYTES
            while left > 0:
                size = round(random.choices([random.uniform(1, 3), 10, 40, 150], [70, 20, 8, 2])[0] * 1000)
                filler.send(Partition(MOVED, number), size)
                left -= size
        filler.finish(_END_SECONDS)
        self._records.begin()
        self._cluster.assert_no_native_throttle()

    def _producer(self, **options: object) -> RecordProducer:
        servers = self._cluster.bootstrap_servers
        return RecordProducer(servers, self._records, idempotent=self._idempotent, **options)  # type: ignore[arg-type]

    def _behind(self) -> list[str]:
        return under_replicated(self._cluster.admin.partitions())

    def _check(self) -> None:
        logs = [broker.log.read_text(errors="replace").splitlines() for broker in self._cluster.brokers.values()]
        history = History(self._lanes.happened, self._mover.moves, leader_starts(chain(*logs)))
        found = self.violations
        found += [f"the producer gave up: {error}" for error in self._records.fatal]
        verdict = self._read()
        found += verdict.violations(self._idempotent)
        differing, compared = differing_replicas(self._cluster, self._cluster.admin.partitions([MOVED, *LIVE]))
        found += differing
        found += self._behind()
        complaints, expected = broker_complaints(self._cluster.bad_signs(), history)
        found += complaints
        for broker_id, sidecar in self._cluster.sidecars.items():
            faults = [one.fault for one in history.happened if one.fault.kind is Kind.RELOAD_BROKEN]
            refused = sum(fault.target == broker_id for fault in faults)
            complaints, warned = sidecar_complaints(broker_id, sidecar.log, refused)
            found += complaints
            expected.update({f"sidecars: {event}": count for event, count in warned.items()})
        found += [
            f"sidecar {broker_id}: {count:.0f} requests passed undecoded ({reason})"
            for (broker_id, reason), count in self._watch.passed.items()
        ]
        found += [str(window) for window in self._watch.windows if window.size > window.allowed]
        self._show(verdict, compared, expected)

    def _read(self) -> Verdict:
        """Read all, again for a while where something is missing."""
        deadline = time.monotonic() + _READ_SECONDS
        while True:
            read = read_back(self._cluster.bootstrap_servers, list(self._rates))
            states = self._cluster.admin.partitions([MOVED, *LIVE])
            for partition, entries in read.items():
                segments = self._cluster.segments(*partition, states[partition].leader)
                log = [batch for segment in segments for batch in batches(segment.read_bytes())]
                read[partition] = with_producers(entries, log)
            verdict = account(self._records.sent, self._records.acked, read)
            if not verdict.counts["lost"] or time.monotonic() > deadline:
                return verdict
            time.sleep(1)

    def _show(self, verdict: Verdict, compared: int, expected: Counter[str]) -> None:
        report, counts = self._report, verdict.counts
        hit = Counter(one.fault.kind for one in self._lanes.happened)
        report.table("faults", "fault | times", [*hit.most_common(), ("all", hit.total())])
        gap, since = self._records.longest_gap
        allowed = "" if self._idempotent else " (allowed here)"
        moves = self._mover.finished
        rated = [window for window in self._watch.windows if window.quota >= _LEAST_RATED]
        used = [window.ratio for window in rated if window.ratio > 0.5]
        rows: list[tuple[str, object]] = [
            ("records acknowledged", counts["acked"]),
            ("records read back", counts["read"]),
            ("lost", counts["lost"]),
            (f"read twice{allowed}", counts["twice"]),
            ("sent again under another producer id", counts["sent_again"]),
            (f"out of order{allowed}", counts["late"]),
            ("given up by the client, not acknowledged", len(self._records.failed)),
            ("longest time without an acknowledgement, s", f"{gap:.1f}, from {since - self._began:.0f} s on"),
            ("moves that ended", len(moves)),
            ("MB moved", sum(move.size for move in moves) / 1e6),
            ("MB compared byte for byte", compared / 1e6),
            ("s with a live partition under-replicated", sum(self._behind_watch.stretches)),
            ("longest of these, s", max(self._behind_watch.stretches, default=0.0)),
            ("throttles lifted for replicas behind for a minute", self._lanes.reliefs),
            ("largest sidecar, MB", self._watch.peak_bytes / 1e6),
            ("throttles that stood still for 3 s and more", len(self._watch.windows)),
            ("of these at 0.2 MB/s and more", len(rated)),
            ("highest mean of 3 s and more of these, x quota", max((window.ratio for window in rated), default=0.0)),
            ("of these used half and more", len(used)),
            ("median of the highest of each of these", statistics.median(used) if used else 0.0),
        ]
        report.table("figures", "figure | value .3", rows)
        report.table("lines in logs that the faults cause", "line | times", [*expected.items()])
        report.bound("violations", len(self.violations), most=0)


def main() -> int:
    """Run it; 1 when anything is violated."""
    options = parser("chaos", "Faults of every kind on real brokers, and nothing lost.")
    options.add_argument("--mode", choices=MODES, default=NEWEST.name, help=f"of the cluster ({NEWEST.name})")
    options.add_argument("--minutes", type=float, default=3.0, help="how long faults go on (3)")
    options.add_argument("--seed", type=int, default=1, help="of the faults (1)")
    options.add_argument("--poll-isr", action="store_true", help="have the sidecars ask for the ISR, by [cluster]")
    asked = options.parse_args()
    mode = MODES[asked.mode]
    report = Report(asked.json)
    report.say(f"{mode.name} (Fetch v{mode.fetch_version}), {asked.minutes:g} minutes, seed {asked.seed}\n")
    throttle = alike(_FIRST_RATE, _FIRST_RATE)
    with mode.cluster(
        sidecars=True, throttle=throttle, poll_isr=asked.poll_isr, properties=_PROPERTIES, heap_mb=320
    ) as cluster:
        chaos = Run(cluster, mode, asked, report)
        try:
            chaos.run()
        finally:
            chaos.abandon()
        if found := chaos.violations:  # raised within the cluster's block, so that its logs stay
            raise LabError(f"{len(found)} violation(s):\n" + "\n".join(found))
    return report.status


if __name__ == "__main__":
    run(main)
