# SPDX-License-Identifier: Apache-2.0
"""What must hold for followers: nobody starves, no error is hidden, records of in-sync partitions are not delayed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.wire import PARTITION_MAX_BYTES, RESPONSE_MAX_BYTES
from tests.quota.model.chain import Chain
from tests.quota.model.follower import Fetcher, Replica
from tests.quota.model.hops import Sidecar
from tests.quota.model.promise import Meter, Term
from tests.quota.model.urgency import Urgency
from tests.quota.model.usage import LOOK_SECONDS, MOST_IN_AN_ANSWER_SECONDS, Usage
from tests.quota.model.world import START

if TYPE_CHECKING:
    from tests.quota.model.run import Run

HIDDEN_SECONDS = 10.0  # no error longer than this
SLACK_SECONDS = 3.0
SLOWEST_SECONDS = 1.0  # of a record of an in-sync partition
LARGE_SECONDS = 0.5  # of quota in one batch
BESIDE_QUESTION_SECONDS = 1.0  # it waits beside a probe
BETWEEN_QUESTIONS_SECONDS = 0.1  # of links that ask at once
SHARE_SECONDS = 0.15  # of quota in one fetch
FLOOR = 0.05  # of the bytes go to whoever waited longest, in the urgent-first order


class Watch:
    """Looks at one run twice a second."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world
        self._disturbed_at = self.world.now
        self._longest_waits: dict[tuple[int, int, int], dict[Key, float]] = {}
        self.usage = Usage(run)
        self._urgency = Urgency(run)

    def start(self) -> None:
        """The run begins."""
        self.measure()
        self.world.after(LOOK_SECONDS, self._look)

    def disturbed(self) -> None:
        """Settings changed: who waits begins to wait anew."""
        self._disturbed_at = self.usage.happened_at = self.world.now
        self.measure()

    def failed(self, fetcher: Fetcher, log: Log) -> None:
        """The leader answers `log` with an error from now on."""
        chain = fetcher.chain
        if chain is not None and chain.is_open and log.key in fetcher.order:
            limit = HIDDEN_SECONDS + 2.0 + self._slowest_answer(fetcher) + self._probe_seconds(fetcher)
            self.world.after(limit, self._must_have_seen, fetcher, log, chain, self.world.now, limit)

    def _must_have_seen(self, fetcher: Fetcher, log: Log, chain: Chain, since: float, limit: float) -> None:
        replica = fetcher.replicas.get(log.key)
        if replica is None or fetcher.chain is not chain or not log.error_code:
            return
        left = limit - (self.world.now - since - chain.excused(since))
        if left > LOOK_SECONDS:  # what the world has held up does not count
            self.world.after(left, self._must_have_seen, fetcher, log, chain, since, limit)
        elif replica.error_seen_at < since and chain.is_open:
            self.world.violate(
                "errors shown", f"{log.key} of replica {fetcher.replica_id} fails for {self.world.now - since:.1f} s"
            )

    def _look(self) -> None:
        now = self.world.now
        for place, fetcher in self.run.fetchers.items():
            if fetcher.chain is None or not fetcher.chain.is_open:
                continue
            waits = self._longest_waits[place]
            for key in fetcher.order:
                replica = fetcher.replicas[key]
                log = replica.log
                if log.error_code or replica.offset >= log.end:
                    replica.moved_at = now
                elif replica.synced_at < math.inf:
                    appended_at = log.appended_at[replica.offset - log.first_live]
                    fetcher.took(max(appended_at, self._disturbed_at), replica)
                else:
                    self._compare(fetcher, replica, waits[key], now)
        self.usage.look()
        self._urgency.look(self.usage.happened_at)
        if self._is_over():
            self.world.stop()
        self.world.after(LOOK_SECONDS, self._look)

    def _is_over(self) -> bool:
        """Whether nothing more can happen but empty answers."""
        run = self.run
        if any(one.live_every for one in run.scenario.partitions) or run.scenario.rogues:
            return False
        if self.world.now < START + max((event.at for event in run.scenario.events), default=0.0) + LOOK_SECONDS:
            return False
        return all(
            replica.synced_at < math.inf and replica.offset >= replica.log.end
            for fetcher in run.fetchers.values()
            for replica in fetcher.replicas.values()
        )

    def _compare(self, fetcher: Fetcher, replica: Replica, longest: float, now: float) -> None:
        since = max(replica.moved_at, self._disturbed_at)
        waits = now - since
        if waits > longest and fetcher.chain is not None and self.run.scenario.has_troubles:
            waits -= fetcher.chain.excused(since)
        if waits > longest:
            self.world.violate(
                "nobody starves",
                f"{replica.key} of replica {fetcher.replica_id} gets nothing for {waits:.1f} s, not {longest:.1f} s",
            )

    def finish(self, is_complete: bool) -> None:
        """The run is over."""
        for sidecar in self.run.sidecars:
            sidecar.meter.finish()
        self.usage.finish()
        self._urgency.finish()

    # How long is long

    def measure(self) -> None:
        """Find out how long who may wait."""
        lines = {
            meter: self._line_seconds(sidecar, meter)
            for sidecar in self.run.sidecars
            for meter in sidecar.meter.meters.values()
        }
        for place, fetcher in self.run.fetchers.items():
            slowest = self._slowest_answer(fetcher)
            fetcher.slowest_allowed = SLOWEST_SECONDS + self._full_seconds(place)
            self._longest_waits[place] = waits = {}
            probes_first = self._probes_first(place)
            path = self.run.path(place[0], place[1])
            for key in fetcher.replicas:
                in_line = sum(
                    lines[term.meter] for sidecar in path for term in self.terms(sidecar, place) if key in term.keys
                )
                seconds = SLACK_SECONDS + 2 * slowest + (in_line or probes_first)
                waits[key] = seconds * (1.5 if self.run.scenario.rogues else 1.0)

    def _full_seconds(self, place: tuple[int, int, int]) -> float:
        """How long large batches of all links fill a quota's window: a slow end's answer may stand still so long."""
        seconds = [
            (sidecar.meter.allowed.batch / meter.rate, sidecar.meter.allowed.links)
            for sidecar in self.run.path(place[0], place[1])
            for meter in sidecar.meter.meters.values()
            if meter.rate
        ]
        return max([batch * links for batch, links in seconds if batch > LARGE_SECONDS], default=0.0)

    def _slowest_answer(self, fetcher: Fetcher) -> float:
        """Seconds that answers may take until it is each partition's turn."""
        rotation = len(fetcher.replicas) * PARTITION_MAX_BYTES + RESPONSE_MAX_BYTES
        return 2 * rotation / self.run.scenario.bandwidth

    def _probes_first(self, place: tuple[int, int, int]) -> float:
        """How long a fetch may be held because a probe of its own may not go yet."""
        seconds = 0.0
        for sidecar in self.run.path(place[0], place[1]):
            if self.terms(sidecar, place):
                seconds += BESIDE_QUESTION_SECONDS + sidecar.meter.allowed.links * BETWEEN_QUESTIONS_SECONDS
        return seconds

    def _probe_seconds(self, fetcher: Fetcher) -> float:
        """Probes of all links share one budget."""
        seconds = 0.0
        for sidecar in self.run.sidecars:
            allowed = sidecar.meter.allowed
            rates = [meter.rate for meter in sidecar.meter.meters.values() if meter.rate is not None]
            if rates:
                price = allowed.batch / min(rates) if min(rates) else math.inf
                seconds += allowed.links * min(price, HIDDEN_SECONDS)
        return seconds

    def terms(self, sidecar: Sidecar, place: tuple[int, int, int]) -> tuple[Term, ...]:
        """The quotas that hold back partitions of a link."""
        return sidecar.terms(self.run.fetchers[place].replica_id, self.run.leaders[place[0]].broker_id)

    def _line_seconds(self, sidecar: Sidecar, meter: Meter) -> float:
        """How long the line is for one quota's budget."""
        run, quota = self.run, meter.rate
        if quota is None:
            return 0.0
        if quota == 0:
            return math.inf
        in_line = backlog = 0
        inflow = 0.0
        throttled: set[Key] = set()
        for place, fetcher in run.fetchers.items():
            if sidecar in run.path(place[0], place[1]):
                keys = next((term.keys for term in self.terms(sidecar, place) if term.meter is meter), frozenset[Key]())
                logs = [(one.log, one.offset) for one in fetcher.replicas.values() if one.key in keys]
                throttled |= keys & fetcher.replicas.keys()
                in_line += len(logs)
                backlog += sum(log.ends[-1] - log.ends[min(offset, log.end)] for log, offset in logs)
        for spec, log in zip(run.scenario.partitions, run.logs, strict=True):
            if spec.live_every and log.key in throttled:
                inflow += spec.live_size / spec.live_every
        left = 1 - 1.1 * inflow / quota
        if left <= 0.1:
            return math.inf
        share = max(sidecar.meter.allowed.batch, SHARE_SECONDS * quota)
        seconds = 0.0
        if run.scenario.bandwidth < RESPONSE_MAX_BYTES:  # a share is for an answer, and a part of the quota is lost
            left *= self.usage.can_be_used(quota, RESPONSE_MAX_BYTES)
            share = max(share, MOST_IN_AN_ANSWER_SECONDS * quota)
        if sidecar.throttle.settings.policy == "kip73":
            share, seconds = max(share, quota), 12.0
        line = in_line * share / (FLOOR if sidecar.throttle.settings.order == "urgent-first" else 1.0)
        return seconds + 2 * min(line, backlog + in_line * share) / quota / left
