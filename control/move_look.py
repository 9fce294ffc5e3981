"""What the cluster says of a plan: where its partitions are, what moves, and how many bytes are still to come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weir.control.cluster_admin import PartitionState
from weir.control.move_admin import MoveAdmin
from weir.planning.assignment import Brokers, Partition, PartitionMove, Reassignment, Replica, planned_moves
from weir.planning.move_status import Copy, LogState, PartitionStatus, log_states, partition_statuses
from weir.planning.reassignment_json import ReassignmentPlan


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the cluster. `states` has no partitions of topics that do not exist."""

    states: Mapping[Partition, PartitionState]
    under_way: Mapping[Partition, Reassignment]
    statuses: Mapping[Partition, PartitionStatus]
    log_states: Mapping[Replica, LogState]

    @property
    def moving(self) -> list[Partition]:
        """The plan's partitions that move as it says."""
        return [partition for partition, status in self.statuses.items() if status.state == "moving"]

    @property
    def waiting(self) -> list[Partition]:
        """The plan's partitions that are not where it says, and do not move."""
        return [partition for partition, status in self.statuses.items() if status.state == "waiting"]

    @property
    def moving_logs(self) -> list[Replica]:
        """The replicas that are being moved between log directories."""
        return [replica for replica, state in self.log_states.items() if state == "moving"]

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of the plan moves, to wherever."""
        return not self.moving_logs and all(s.state not in ("moving", "elsewhere") for s in self.statuses.values())


def look(admin: MoveAdmin, plan: ReassignmentPlan) -> Look:
    """Look at a plan's partitions."""
    # In this order: what ends in between shows as a move under way and not as one that never began.
    states = admin.existing_partitions(plan.topics)
    under_way = admin.reassignments()
    ended = [p for p in plan.brokers if p not in under_way and p in states and states[p].replicas != plan.brokers[p]]
    if ended:
        states = admin.existing_partitions(plan.topics)
    current = {partition: states[partition].replicas for partition in plan.brokers if partition in states}
    logs: dict[Replica, dict[str, bool]] = {}
    if plan.log_dirs:
        alive = set(admin.brokers())
        asked = sorted({replica.broker for replica in plan.log_dirs} & alive)
        for replica, found in admin.replica_logs(asked, {replica.of for replica in plan.log_dirs}).items():
            logs[replica] = {log.path: log.is_future for log in found}
    return Look(
        states, under_way, partition_statuses(plan.brokers, current, under_way), log_states(plan.log_dirs, logs)
    )


def moves_of(plan: Mapping[Partition, Brokers], seen: Look) -> dict[Partition, PartitionMove]:
    """Return what is to be copied for those partitions of a plan that exist."""
    current = {partition: seen.states[partition].replicas for partition in plan if partition in seen.states}
    return planned_moves({p: brokers for p, brokers in plan.items() if p in current}, current, seen.under_way)


def copies_of(
    admin: MoveAdmin, plan: Mapping[Partition, Brokers], before: Mapping[Partition, Brokers], seen: Look
) -> dict[Replica, Copy]:
    """Return how much each new replica has. `before` has the replicas before the move, where they are known."""
    wanted: dict[Partition, frozenset[int]] = {}
    for partition, move in moves_of(plan, seen).items():
        sources = frozenset(before.get(partition, ())) or move.sources
        wanted[partition] = frozenset(plan[partition]) - sources
    moving = {partition: brokers for partition, brokers in wanted.items() if brokers}
    alive = set(admin.brokers())
    leaders = {partition: seen.states[partition].leader for partition in moving}
    asked = {broker for brokers in moving.values() for broker in brokers} | set(leaders.values())
    logs = admin.replica_logs(sorted(asked & alive), moving) if moving else {}
    sizes = {replica: max((log.size for log in found), default=0) for replica, found in logs.items()}
    copies = {}
    for partition, brokers in moving.items():
        of = sizes.get(Replica(*partition, leaders[partition]), 0)
        for broker in brokers:
            has = of if seen.statuses[partition].state == "done" else sizes.get(Replica(*partition, broker), 0)
            copies[Replica(*partition, broker)] = Copy(has, of)
    return copies


def leader_sizes(admin: MoveAdmin, states: Mapping[Partition, PartitionState]) -> dict[Partition, int]:
    """Return the bytes of each partition at its leader; those without a leader that is up are left out."""
    alive = set(admin.brokers())
    leaders = {partition: state.leader for partition, state in states.items() if state.leader in alive}
    if not leaders:
        return {}
    logs = admin.replica_logs(sorted(set(leaders.values())), leaders)
    return {
        partition: max(log.size for log in found)
        for partition, leader in leaders.items()
        if (found := logs.get(Replica(*partition, leader)))
    }


def growth(
    admin: MoveAdmin,
    states: Mapping[Partition, PartitionState],
    seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> dict[Partition, float]:
    """Return the bytes/s by which each partition's log grows at its leader, seen over so many seconds."""
    begun, before = clock(), leader_sizes(admin, states)
    sleep(seconds)
    after = leader_sizes(admin, states)
    passed = clock() - begun
    return {
        partition: (size - before[partition]) / passed
        for partition, size in after.items()
        if size > before.get(partition, size)
    }
