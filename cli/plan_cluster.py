# SPDX-License-Identifier: Apache-2.0
"""The inputs of `weir plan` that a live cluster tells, for those that no option gives."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.cli.cluster import CommandConfigOption, as_command_errors, connector
from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.move_sidecars import Replicated, Sidecars
from weir.cli.options import option
from weir.cli.sidecars import AdminOption
from weir.planning.assignment import Partition

WATCHED_SECONDS = 5.0
"""How long log sizes are watched, to see what comes in."""


@dataclass(frozen=True, slots=True)
class Live:
    """What a cluster is now: brokers, R, partitions, and of all brokers or one, log size (bytes) and bytes in.

    `is_by_sidecar`: the sidecar of the busiest broker tells its bytes in, and not its logs.
    """

    brokers: int
    replication_factor: int
    partitions: int
    log_size: float
    bytes_in: float
    busiest: int
    is_by_sidecar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """The cluster that tells what no option gives, and the sidecars that know more of it."""

    bootstrap_server: str | None = option(
        "--bootstrap-server", "HOST:PORT", "Read from this cluster what no option gives."
    )
    command_config: CommandConfigOption = None
    admin: AdminOption = None


def read_live(options: LiveOptions, broker: int | None) -> Live | None:
    """Ask a cluster; None where no option names one. With `broker`, sizes and bytes in are that broker's alone.

    Bytes in are what sidecars tell, or the growth of logs where that is more: a sidecar sees no topic with one replica.
    """
    if options.bootstrap_server is None:
        if options.admin:
            raise CommandError("--admin needs --bootstrap-server: sidecars tell only what comes in now.", WRONG_USAGE)
        return None
    connect, sidecars = connector(options.bootstrap_server, options.command_config), Sidecars(options.admin)
    from weir.control.plan_state import growth, leader_sizes

    with as_command_errors(), connect() as admin:
        brokers = admin.brokers()
        states = admin.partitions()
        if broker is not None and broker not in brokers:
            raise CommandError(f"--broker: there is no broker {broker} in the cluster, or it is down.")
        if not states:
            raise CommandError("--bootstrap-server: the cluster has no topic, so there is nothing to move.")
        sizes = leader_sizes(admin, states)
        before, begun = sidecars.replicated(), time.monotonic()
        grown = growth(admin, states, WATCHED_SECONDS)
        after, seconds = sidecars.replicated(), time.monotonic() - begun
    held = {partition: state.replicas for partition, state in states.items()}
    asked = brokers if broker is None else [broker]
    log_sizes = _by_broker(held, sizes, asked)
    factors = Counter(len(replicas) for replicas in held.values())
    factor = factors.most_common(1)[0][0]
    by_logs = _by_broker(held, grown, asked)
    by_sidecars = {
        one: _bytes_in(before[one], after[one], seconds, factor) for one in asked if one in before and one in after
    }
    rates = {one: max(by_logs[one], by_sidecars.get(one, 0.0)) for one in asked}
    busiest = max(rates, key=rates.__getitem__)
    return Live(
        brokers=len(brokers),
        replication_factor=factor,
        partitions=len(states),
        log_size=sum(log_sizes.values()) / len(log_sizes),
        bytes_in=rates[busiest],
        busiest=busiest,
        is_by_sidecar=by_sidecars.get(busiest, 0.0) > by_logs[busiest],
    )


def _bytes_in(before: Replicated, after: Replicated, seconds: float, factor: int) -> float:
    """Return the bytes/s that come into a broker, by what its sidecar counted of replicas that are not throttled.

    A leader sends what comes in once to each of its followers. Where the sidecar has one side only, the KIP's
    proportion stands in for the other: 1/R of what comes in is for leaders.
    """
    if factor < 2:
        return 0.0

    def rate(then: int | None, now: int | None) -> float | None:
        return max(0, now - then) / seconds if then is not None and now is not None else None

    received, sent = rate(before.received, after.received), rate(before.sent, after.sent)
    as_leader = sent / (factor - 1) if sent is not None else (received or 0.0) / (factor - 1)
    return as_leader + (received if received is not None else as_leader * (factor - 1))


def _by_broker(
    held: Mapping[Partition, Iterable[int]], amounts: Mapping[Partition, float], brokers: Iterable[int]
) -> dict[int, float]:
    """Add up what each broker has of all partitions that it holds, whoever leads them."""
    return {
        broker: sum(amount for partition, amount in amounts.items() if broker in held[partition]) for broker in brokers
    }
