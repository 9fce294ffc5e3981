# SPDX-License-Identifier: Apache-2.0
"""What the cluster says of a plan: where its partitions are, what moves, and how many bytes are still to come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weir.control.cluster_admin import PartitionState
from weir.control.move_admin import MoveAdmin
from weir.planning.assignment import Brokers, Partition, PartitionMove, Reassignment, Replica, planned_moves
from weir.planning.finish_by import Moving
from weir.planning.move_status import LogState, PartitionStatus, State, log_states, partition_statuses
from weir.planning.reassignment_json import ReassignmentPlan

INFLOW_SECONDS = 3.0
"""How long is watched what producers write, to compare a throttle with it."""


@dataclass(frozen=True, slots=True)
class PlanState:
    """What the cluster said of a plan at one moment. `states` has no partitions of topics that do not exist."""

    plan: ReassignmentPlan
    states: Mapping[Partition, PartitionState]
    under_way: Mapping[Partition, Reassignment]
    statuses: Mapping[Partition, PartitionStatus]
    log_states: Mapping[Replica, LogState]

    def partitions(self, *states: State) -> list[Partition]:
        """Return the plan's partitions that are in one of these states."""
        return [partition for partition, status in self.statuses.items() if status.state in states]

    @property
    def waiting(self) -> list[Partition]:
        """The plan's partitions that are not where it says, and do not move."""
        return self.partitions("waiting")

    @property
    def arrived(self) -> list[Partition]:
        """The partitions that still move although all of their new replicas are in sync.

        After an unclean election the controller looks only when the partition changes, or is ordered to move again.
        """
        moving = self.partitions("moving")
        return [one for one in moving if set(self.plan.brokers[one]) <= set(self.states[one].in_sync_replicas)]

    @property
    def moving_logs(self) -> list[Replica]:
        """The replicas that are being moved between log directories."""
        return [replica for replica, state in self.log_states.items() if state == "moving"]

    def log_dirs_to_tell(self, begun: Collection[Partition]) -> dict[Replica, str]:
        """Return the directories that replicas are still to be told; `begun` are partitions that just began to move.

        A partition of a later step is told when its turn has come.
        """
        waiting = set(self.partitions("waiting", "elsewhere", "gone")) - set(begun)
        return {
            replica: path
            for replica, path in self.plan.log_dirs.items()
            if self.log_states[replica] in ("missing", "waiting") and replica.of not in waiting
        }

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of the plan moves, to wherever."""
        return not self.moving_logs and not self.partitions("moving", "elsewhere")

    @property
    def is_done(self) -> bool:
        """Whether all is where the plan says; a topic that was deleted hinders nothing."""
        is_there = (s == "done" or self.statuses[replica.of].state == "gone" for replica, s in self.log_states.items())
        return len(self.partitions("done", "gone")) == len(self.statuses) and all(is_there)

    @property
    def moves(self) -> dict[Partition, PartitionMove]:
        """What is to be copied for those partitions of the plan that exist."""
        current = {p: self.states[p].replicas for p in self.plan.brokers if p in self.states}
        return planned_moves({p: self.plan.brokers[p] for p in current}, current, self.under_way)

    @property
    def receiving(self) -> dict[Partition, PartitionState]:
        """The plan's partitions that exist and get new replicas."""
        return {partition: self.states[partition] for partition, move in self.moves.items() if move.destinations}

    @property
    def before(self) -> dict[Partition, Brokers]:
        """The replicas that the plan's partitions had before it, for the way back."""
        return {
            partition: tuple(broker for broker in self.states[partition].replicas if broker in move.sources)
            for partition, move in self.moves.items()
        }


def read_plan_state(admin: MoveAdmin, plan: ReassignmentPlan) -> PlanState:
    """Ask the cluster how far a plan is. ControlError where it does not answer."""
    # In this order: what ends in between shows as a move under way and not as one that never began.
    states = admin.existing_partitions(plan.topics)
    under_way = admin.reassignments()
    if any(p not in under_way and p in states and states[p].replicas != plan.brokers[p] for p in plan.brokers):
        states = admin.existing_partitions(plan.topics)
    current = {partition: states[partition].replicas for partition in plan.brokers if partition in states}
    logs: dict[Replica, dict[str, bool]] = {}
    if plan.log_dirs:
        asked = {replica.broker for replica in plan.log_dirs} & set(admin.brokers())
        for replica, found in admin.replica_logs(sorted(asked), {replica.of for replica in plan.log_dirs}).items():
            logs[replica] = {log.path: log.is_future for log in found}
    statuses = partition_statuses(plan.brokers, current, under_way)
    return PlanState(plan, states, under_way, statuses, log_states(plan.log_dirs, logs))


def moving_of(
    admin: MoveAdmin, seen: PlanState, before: Mapping[Partition, Brokers] | None = None
) -> dict[Partition, Moving]:
    """Return how far each partition with new replicas is. `before` has the replicas before the plan, as far as known.

    Without it a partition that is done has no new replicas.
    """
    known = before or {}
    added = {
        partition: frozenset(seen.plan.brokers[partition]) - (frozenset(known.get(partition, ())) or move.sources)
        for partition, move in seen.moves.items()
    }
    added = {partition: brokers for partition, brokers in added.items() if brokers}
    asked = {broker for p, brokers in added.items() for broker in (*brokers, seen.states[p].leader)}
    alive = set(admin.brokers())
    logs = admin.replica_logs(sorted(asked & alive), added) if added else {}
    sizes = {replica: max((log.size for log in found), default=0) for replica, found in logs.items()}
    moving = {}
    for partition, brokers in added.items():
        state = seen.states[partition]
        size = sizes.get(Replica(*partition, state.leader), 0)
        is_done = seen.statuses[partition].state == "done"
        has = {broker: size if is_done else sizes.get(Replica(*partition, broker), 0) for broker in brokers}
        left = {broker: max(0, size - bytes_) for broker, bytes_ in has.items()}
        moving[partition] = Moving(state.leader, size, len(state.replicas) - 1, left)
    return moving


def leader_sizes(admin: MoveAdmin, states: Mapping[Partition, PartitionState]) -> dict[Partition, int]:
    """Return the bytes of each partition at its leader; those without a leader that is up are left out."""
    alive = set(admin.brokers())
    leaders = {partition: state.leader for partition, state in states.items() if state.leader in alive}
    logs = admin.replica_logs(sorted(set(leaders.values())), leaders) if leaders else {}
    return {
        partition: max(log.size for log in found)
        for partition, leader in leaders.items()
        if (found := logs.get(Replica(*partition, leader)))
    }


def growth(admin: MoveAdmin, states: Mapping[Partition, PartitionState], seconds: float) -> dict[Partition, float]:
    """Return the bytes/s by which each partition's log grows at its leader, seen over so many seconds."""
    if not states:
        return {}
    begun, before = admin.clock(), leader_sizes(admin, states)
    admin.sleep(seconds)
    after = leader_sizes(admin, states)
    passed = admin.clock() - begun
    return {
        partition: (size - before[partition]) / passed
        for partition, size in after.items()
        if size > before.get(partition, size)
    }
