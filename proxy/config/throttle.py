# SPDX-License-Identifier: Apache-2.0
"""What the `[throttle]` table sets for each side, and what cannot be set together."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weir.proxy.config.reader import ConfigError, join
from weir.proxy.config.tables import SIDES, Cluster, Config, ThrottleTable
from weir.quota.scopes import Matching, Reassigned, Recovering
from weir.quota.settings import (
    FOLLOWER_REASSIGNMENT_RATE,
    LEADER_REASSIGNMENT_RATE,
    LEAST_SHARE,
    REASSIGNMENT,
    RECOVERY,
    UNTOLD,
    QuotaSettings,
    SideName,
    ThrottleSettings,
)


def check_throttle(table: ThrottleTable, cluster: Cluster | None, path: str = "") -> None:
    """Check what one setting alone does not tell; ConfigError names the field, its path below `path`."""
    needs_cluster = "needs [cluster]: only the cluster tells"
    for name, rate in (
        (LEADER_REASSIGNMENT_RATE, table.leader_reassignment_rate),
        (FOLLOWER_REASSIGNMENT_RATE, table.follower_reassignment_rate),
    ):
        if rate is not None and cluster is None:
            raise ConfigError(join(path, name), f"{needs_cluster} what a reassignment adds")
    names: set[str] = set()
    for index, quota in enumerate(table.quotas):
        field = join(path, f"quotas[{index}]")
        if quota.name in names:
            raise ConfigError(f"{field}.name", f'"{quota.name}" is the name of another quota too')
        names.add(quota.name)
        given = {"peers": quota.peers, "racks": quota.racks, "topics": quota.topics}
        if quota.kept_at == "leaders":
            if quota.side == "leader":
                reason = 'is for side = "follower" only: a leader keeps its own quotas itself'
                raise ConfigError(f"{field}.kept_at", reason)
            if cluster is None:
                raise ConfigError(f"{field}.kept_at", f"{needs_cluster} which leaders share it")
        elif all(value is None for value in given.values()):
            raise ConfigError(field, "covers nothing: give it peers, racks or topics")
        for name, value in given.items():
            if value == ():
                raise ConfigError(f"{field}.{name}", "is empty: it would cover nothing; leave it out to cover all")
        if quota.racks is not None and cluster is None:
            raise ConfigError(f"{field}.racks", f"{needs_cluster} the racks of brokers")


def wants_facts(table: ThrottleTable) -> bool:
    """Whether it has to be known what reassignments add, or which rack a broker is in."""
    rates = (
        table.leader_reassignment_rate,
        table.follower_reassignment_rate,
        table.leader_recovery_rate,
        table.follower_recovery_rate,
    )
    return any(rate is not None for rate in rates) or any(quota.racks is not None for quota in table.quotas)


def wants_brokers(table: ThrottleTable) -> bool:
    """Whether it has to be known which brokers there are, as leaders share a follower's quota."""
    return any(quota.kept_at == "leaders" for quota in table.quotas)


def settings_of_sides(
    config: Config, table: ThrottleTable, followers: Collection[int] = ()
) -> dict[SideName, ThrottleSettings]:
    """Return what `table` and the file's other tables set for each side's throttle.

    `followers` are the brokers that a quota which is kept at the leaders is for, where it does not name them.
    """
    return {side: _settings(config, table, side, followers) for side in SIDES}


def _settings(config: Config, table: ThrottleTable, side: SideName, followers: Collection[int]) -> ThrottleSettings:
    lists = ((name, getattr(topic, f"{side}_replicas")) for name, topic in table.topics.items())
    spares = table.under_min_isr != "throttled"
    standing = (
        (REASSIGNMENT, getattr(table, f"{side}_reassignment_rate"), Reassigned(spares)),
        (RECOVERY, getattr(table, f"{side}_recovery_rate"), Recovering(spares)),
    )
    return ThrottleSettings(
        rate=getattr(table, f"{side}_rate"),
        replicas={name: replicas for name, replicas in lists if replicas},
        quotas=(
            *(QuotaSettings(name, of_all, scope) for name, of_all, scope in standing if of_all is not None),
            *_scoped_quotas(config, table, side, followers),
        ),
        is_observed=table.mode == "observe",
        policy=config.quota.policy,
        order=config.quota.order,
        window_num=config.quota.window_num,
        window_size_seconds=config.quota.window_size_seconds,
        replica_lag_time_max_ms=config.quota.replica_lag_time_max_ms,
        response_max_bytes=config.fetch.response_max_bytes,
    )


def _scoped_quotas(
    config: Config, table: ThrottleTable, side: SideName, followers: Collection[int]
) -> Iterator[QuotaSettings]:
    """Yield a side's quotas. What leaders keep for followers is the leader's side's, a quota for each follower."""
    for quota in table.quotas:
        racks = None if quota.racks is None else frozenset(quota.racks)
        if quota.kept_at == "here":
            if quota.side == side:
                peers = None if quota.peers is None else frozenset(quota.peers)
                scope = Matching(peers, racks, quota.topics)
                yield QuotaSettings(quota.name, quota.rate, scope, quota.mode == "observe")
        elif side == "leader":
            if quota.peers is None and not followers:  # the brokers are not known yet: all may be followers
                scope = Matching(None, racks, quota.topics)
                yield QuotaSettings(f"{UNTOLD}-{quota.name}", LEAST_SHARE, scope, quota.mode == "observe")
            for follower in sorted(set(followers if quota.peers is None else quota.peers) - {config.broker_id}):
                name, scope = f"{quota.name}/{follower}", Matching(frozenset({follower}), racks, quota.topics)
                yield QuotaSettings(name, quota.rate, scope, quota.mode == "observe", follower)
