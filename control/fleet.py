# SPDX-License-Identifier: Apache-2.0
"""What a cluster says of its throttles and moves, and which throttles were left behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weir.control.cluster_admin import DISK_RATE, ClusterAdmin, Partition, Reassignment, ThrottleSetting
from weir.control.errors import ControlError

STALE_SECONDS: Final = 600.0
"""A throttle is stale when nothing has been behind for as long."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster at one moment. `alive` are the brokers that are not fenced; `out_of_sync` counts replicas.

    `silent` are those that do not tell their settings, and why: one that has just gone is not fenced for some seconds.
    """

    alive: frozenset[int]
    moves: Mapping[Partition, Reassignment]
    out_of_sync: int
    throttles: tuple[ThrottleSetting, ...]
    silent: Mapping[int, str] = field(default_factory=dict)

    def clearable(self) -> tuple[ThrottleSetting, ...]:
        """Return what a move can have left behind.

        The cluster's defaults and the brokers' files are somebody's policy. The rate between a broker's disks is left
        out, as moves between them are not among those that are listed.
        """
        return tuple(throttle for throttle in self.throttles if throttle.is_own and throttle.setting != DISK_RATE)

    def why_not_stale(self, none_behind_seconds: Sequence[float]) -> str | None:
        """Return why the throttles may still be needed; None where they are stale.

        `none_behind_seconds`: for how long nothing has been behind, as each side of each sidecar says.
        """
        if self.moves:
            return f"{_counted(len(self.moves), 'partition')} being reassigned"
        if self.out_of_sync:
            return f"{_counted(self.out_of_sync, 'replica')} not in sync"
        if self.silent:
            return f"{_brokers(sorted(self.silent))} silent about its throttle"
        if not none_behind_seconds:
            return "no sidecar tells for how long nothing has been behind"
        if (least := min(none_behind_seconds)) < STALE_SECONDS:
            return f"a sidecar knows for {least:.0f} s only that nothing is behind; {STALE_SECONDS:.0f} s are wanted"
        return None

    def stuck_moves(self, not_following: Collection[tuple[str, int, int]]) -> dict[Partition, str]:
        """Return the moves that cannot end as things are, and why.

        `not_following` are (topic, partition, broker) of replicas that do not fetch, or get errors only.
        """
        found = {}
        for partition, move in sorted(self.moves.items()):
            down = [broker for broker in move.adding_replicas if broker not in self.alive]
            silent = [broker for broker in move.adding_replicas if (*partition, broker) in not_following]
            if down:
                found[partition] = f"{_brokers(down)} down"
            elif silent:
                found[partition] = f"{_brokers(silent)} not following: look at its log"
        return found


def cluster_state(admin: ClusterAdmin) -> ClusterState:
    """Ask a cluster for its state; ControlError."""
    alive = frozenset(admin.brokers())
    partitions = admin.partitions()
    topics = sorted({partition.topic for partition in partitions})
    out_of_sync = sum(len(set(state.replicas) - set(state.in_sync_replicas)) for state in partitions.values())
    throttles, silent = _throttles(admin, sorted(alive), topics)
    return ClusterState(alive, admin.reassignments(), out_of_sync, tuple(throttles), silent)


def _throttles(
    admin: ClusterAdmin, brokers: Sequence[int], topics: Sequence[str]
) -> tuple[list[ThrottleSetting], dict[int, str]]:
    """Return the settings of Kafka's own throttle, and why for each broker that does not tell them."""
    patience, admin.patience_seconds = admin.patience_seconds, 0.0
    try:
        return admin.throttle_settings(brokers, topics), {}
    except ControlError:
        found, silent = [], {}
        for broker in brokers:
            try:
                found += admin.throttle_settings([broker], [])
            except ControlError as error:
                silent[broker] = error.reason
    finally:
        admin.patience_seconds = patience
    return [*found, *admin.throttle_settings([], topics)], silent


def _counted(count: int, what: str) -> str:
    return f"1 {what} is" if count == 1 else f"{count:,} {what}s are"


def _brokers(ids: Sequence[int]) -> str:
    names = ", ".join(map(str, ids))
    return f"broker {names} is" if len(ids) == 1 else f"brokers {names} are"
