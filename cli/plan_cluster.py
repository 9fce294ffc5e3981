"""The inputs of `weir plan` that a live cluster tells, for those that no option gives."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.errors import CommandError
from cli.move_inputs import connector, told_errors
from planning.assignment import Partition

WATCHED_SECONDS = 5.0
"""How long log sizes are watched, to see what comes in."""


@dataclass(frozen=True, slots=True)
class Live:
    """What a cluster is now: brokers, R, partitions, and of all brokers or one, log size (bytes) and bytes in."""

    brokers: int
    replication_factor: int
    partitions: int
    log_size: float
    bytes_in: float
    busiest: int


def read_live(bootstrap_server: str | None, command_config: Path | None, broker: int | None) -> Live | None:
    """Ask a cluster; None where no option names one. With `broker`, sizes and bytes in are that broker's alone."""
    if bootstrap_server is None:
        return None
    connect = connector(bootstrap_server, command_config)
    from control.move_look import growth, leader_sizes

    with told_errors(), connect() as admin:
        brokers = admin.brokers()
        states = admin.partitions()
        if broker is not None and broker not in brokers:
            raise CommandError(f"--broker: there is no broker {broker} in the cluster, or it is down.")
        if not states:
            raise CommandError("--bootstrap-server: the cluster has no topic, so there is nothing to move.")
        sizes = leader_sizes(admin, states)
        grown = growth(admin, states, WATCHED_SECONDS, time.monotonic, time.sleep)
    held = {partition: state.replicas for partition, state in states.items()}
    asked = brokers if broker is None else [broker]
    log_sizes = _by_broker(held, sizes, asked)
    rates = _by_broker(held, grown, asked)
    busiest = max(rates, key=rates.__getitem__)
    factors = Counter(len(replicas) for replicas in held.values())
    return Live(
        brokers=len(brokers),
        replication_factor=factors.most_common(1)[0][0],
        partitions=len(states),
        log_size=sum(log_sizes.values()) / len(log_sizes),
        bytes_in=rates[busiest],
        busiest=busiest,
    )


def _by_broker(
    held: Mapping[Partition, Iterable[int]], amounts: Mapping[Partition, float], brokers: Iterable[int]
) -> dict[int, float]:
    """Add up what each broker has of all partitions that it holds, whoever leads them."""
    return {
        broker: sum(amount for partition, amount in amounts.items() if broker in held[partition]) for broker in brokers
    }
