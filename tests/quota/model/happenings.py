# SPDX-License-Identifier: Apache-2.0
"""What happens to a run's cluster while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.fakes.kafka.fetcher_session import BACKOFF_SECONDS
from tests.fakes.kafka.logs import Log
from tests.quota.model.scenario import Event, Side

if TYPE_CHECKING:
    from tests.quota.model.run import Cluster, Run

NOT_LEADER_OR_FOLLOWER = 6
_LAST_THAT_GOES_BACK = 3  # below 0.11
_HEALS_AFTER = 25.0


def happen(run: Run, event: Event) -> None:
    """Have an event happen."""
    lasts = (event.value or 0) if event.what in ("pause", "stop") else 0
    run.watch.usage.happened_at = run.world.now + lasts
    run.world.say(str(event))
    _HAPPENINGS[event.what](run, event)


def _chosen(run: Run, event: Event) -> tuple[int, tuple[int, int, int]]:
    index = event.index % len(run.scenario.partitions)
    spec = run.scenario.partitions[index]
    return index, (spec.leader, spec.follower, spec.fetcher)


def _break(run: Run, event: Event) -> None:
    _, place = _chosen(run, event)
    fetcher = run.fetchers[place]
    if fetcher.chain is not None and fetcher.chain.is_open:
        fetcher.chain.close()
        run.world.after(BACKOFF_SECONDS, run.connect, place, fetcher)


def _fail(run: Run, event: Event) -> None:
    index, place = _chosen(run, event)
    log = run.logs[index]
    if log.key in run.leaders[place[0]].logs and not log.error_code:
        run.leaders[place[0]].fail(log, NOT_LEADER_OR_FOLLOWER)
        run.watch.failed(run.fetchers[place], log)
        run.world.after(_HEALS_AFTER, run.leaders[place[0]].fail, log, 0)


def _elect(run: Run, event: Event) -> None:
    index, place = _chosen(run, event)
    log = run.logs[index]
    run.fetchers[place].elect(log.key, (event.value or 0) if run.scenario.version <= _LAST_THAT_GOES_BACK else 0)


def _delete(run: Run, event: Event) -> None:
    index, place = _chosen(run, event)
    run.leaders[place[0]].delete(run.logs[index].key)
    run.world.after(0.3, run.fetchers[place].delete, run.logs[index].key)


def _anew(run: Run, event: Event) -> None:
    """A topic is deleted, and made again under its name. Under another id it is another topic."""
    _delete(run, event)
    if not run.by_id:
        run.world.after(1.5, _make, run, event)


def _make(run: Run, event: Event) -> None:
    index, place = _chosen(run, event)
    spec, key = run.scenario.partitions[index], run.logs[index].key
    if key not in run.leaders[place[0]].logs:
        log = run.logs[index] = Log.of_pattern(key, spec.pattern, 0)
        for _ in range(spec.count):
            log.append(spec.pattern[0], run.world.now)
        # Who had caught up with an old one that was empty still counts as nearly in sync: names tell no logs apart.
        old = run.leaders[place[0]].deleted[key].caught_up
        log.caught_up = {replica: caught_up for replica, caught_up in old.items() if not caught_up[0]}
        run.leaders[place[0]].logs[key] = log
        run.fetchers[place].add(log)
        run.watch.measure()
        if spec.live_every:
            run.world.after(spec.live_every, run.produce, log, spec)


def _pause(run: Run, event: Event) -> None:
    """A follower takes nothing for a while."""
    chain = run.fetchers[_chosen(run, event)[1]].chain
    if chain is not None:
        chain.pause(event.value or 0)


def _stop(run: Run, event: Event) -> None:
    """A sidecar's process is stopped for a while."""
    leader, follower, _ = _chosen(run, event)[1]
    path = run.path(leader, follower)
    sidecar = path[event.side % len(path)]
    sidecar.stop(event.value or 0)
    for place, fetcher in run.fetchers.items():
        if fetcher.chain is not None and sidecar in run.path(place[0], place[1]):
            fetcher.chain.busy_for(event.value or 0)


def _away(run: Run, event: Event) -> None:
    """A follower is gone for a while."""
    _, place = _chosen(run, event)
    fetcher = run.fetchers[place]
    if fetcher.chain is not None and fetcher.chain.is_open:
        fetcher.chain.close()
        run.world.after(event.value or 0, run.connect, place, fetcher)


def _quota(run: Run, event: Event) -> None:
    side = run.sides[event.side]
    _change(run, event.side, replace(side, rate=event.value))


def _order(run: Run, event: Event) -> None:
    """Partitions are fed in turn from now on."""
    _change(run, event.side, replace(run.sides[event.side], order="round-robin"))


def _lists(run: Run, event: Event) -> None:
    side = run.sides[event.side]
    lists = ((0,), (0, 1), (1,), (), (0, 1), (0, 2))[event.value or 0]
    _change(run, event.side, replace(side, topics=lists))


def _scoped_quota(run: Run, event: Event) -> None:
    """A quota has another rate. Without one it is removed or put back, or only observes from now on."""
    all_quotas = (run.scenario.follower if event.side else run.scenario.leader).quotas
    if not all_quotas:
        return
    side = run.sides[event.side]
    quotas = {one.name: one for one in side.quotas}
    first = all_quotas[event.index % len(all_quotas)]
    one = quotas.get(first.name)
    if one is None:
        quotas[first.name] = first
    elif event.value is not None:
        quotas[first.name] = replace(one, rate=event.value)
    elif event.index % 2:
        quotas[first.name] = replace(one, is_observed=not one.is_observed)
    else:
        del quotas[first.name]
    _change(run, event.side, replace(side, quotas=tuple(quotas.values())))


def _reassign(run: Run, event: Event) -> None:
    """A reassignment begins to add a partition to its follower, or ends."""
    spec = run.scenario.partitions[event.index % len(run.scenario.partitions)]
    run.cluster = replace(run.cluster, adding=run.cluster.adding ^ {(spec.topic, spec.number)})
    _tell_all(run)


def _under_min_isr(run: Run, event: Event) -> None:
    """A partition falls below its min ISR, or comes back."""
    spec = run.scenario.partitions[event.index % len(run.scenario.partitions)]
    under = run.cluster.under_min_isr ^ {(spec.topic, spec.number)}
    run.cluster = replace(run.cluster, under_min_isr=under)
    _tell_all(run)


def _tell_all(run: Run) -> None:
    """The sidecars of the leaders know at once what the cluster says, those of the followers perhaps later."""

    def tell(number: int, cluster: Cluster) -> None:
        run.clusters[number] = cluster
        for sidecar in run.egress if number else run.ingress:
            run.tell(sidecar)
        run.all_may_be_asked()

    tell(0, run.cluster)
    run.world.after(run.scenario.told_after, tell, 1, run.cluster)


def _change(run: Run, number: int, side: Side) -> None:
    run.sides[number] = side
    for sidecar in run.egress if number else run.ingress:
        run.configure(sidecar, side)
    run.all_may_be_asked()


def _evict(run: Run, event: Event) -> None:
    for leader in run.leaders:
        leader.sessions.clear()


def _burst(run: Run, event: Event) -> None:
    index, place = _chosen(run, event)
    log = run.logs[index]
    if log.key in run.leaders[place[0]].logs and not log.error_code:
        for _ in range(10 * (event.value or 0)):
            run.leaders[place[0]].append(log, run.scenario.partitions[index].live_size)


_HAPPENINGS: dict[str, Callable[[Run, Event], None]] = {
    "break": _break,
    "fail": _fail,
    "elect": _elect,
    "delete": _delete,
    "quota": _quota,
    "lists": _lists,
    "evict": _evict,
    "burst": _burst,
    "reassign": _reassign,
    "under min ISR": _under_min_isr,
    "scoped quota": _scoped_quota,
    "pause": _pause,
    "stop": _stop,
    "anew": _anew,
    "order": _order,
    "away": _away,
}
