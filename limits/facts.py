# SPDX-License-Identifier: Apache-2.0
"""What there is to show of a client: its limits, who it is, and who shares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from weir.limits.client_ids import Kind, read_client_id
from weir.limits.clients import Client, GroupKey
from weir.limits.group import Group
from weir.limits.rules import Per

RECORD_RATE: Final = "record.rate.limit"


class ClientFacts(NamedTuple):
    """One client, and the entry that is named first of those that limit it: the one with the least record rate."""

    client_id: str
    kind: Kind
    connector: str | None
    """None where the id names none, and so for the task."""
    task: int | None
    entry: str
    """The pattern of the entry."""
    per: Per
    group: str
    """What has the limit: the client id itself, or what stands for all tasks of its connector."""
    limits: Mapping[str, float]
    """What is set of the entry's limits, by their keys: for the whole group, over all brokers.

    Those of limiters that failed are not among them.
    """
    share: float
    """The part of the limits that is to be used here."""
    allowed: float | None
    """Records/s that its group may move here; None where there is no such limit."""
    rank: int
    """Where a shared limit binds, clients of a lower rank go first."""

    @property
    def group_key(self) -> GroupKey:
        """What `sharing` tells by whom."""
        return self.entry, self.per, self.group

    @property
    def record_rate_limit(self) -> float | None:
        """Records/s for the whole group, over all brokers; None where there is no such limit."""
        return self.limits.get(RECORD_RATE)


def facts_of(client: Client) -> ClientFacts:
    """Return them. A client has at least one group."""
    group = min(client.groups, key=_tightness)
    name = read_client_id(client.client_id)
    return ClientFacts(
        client.client_id,
        name.kind,
        name.connector,
        name.task,
        group.rule.pattern,
        group.rule.per,
        group.rule.group_of(client.client_id),
        _limits(group),
        group.share,
        allowed_records(group),
        group.rule.rank(client.client_id),
    )


def allowed_records(group: Group) -> float | None:
    """Return the records/s that a group may move here: its part of the limit; None where there is no such limit."""
    limit = _limits(group).get(RECORD_RATE)
    return None if limit is None else limit * group.share


def sharing(clients: Iterable[Client]) -> dict[GroupKey, list[str]]:
    """Return the clients' ids by the group that has their limit."""
    found: dict[GroupKey, list[str]] = {}
    for client in clients:
        for group in client.groups:
            rule = group.rule
            found.setdefault((rule.pattern, rule.per, rule.group_of(client.client_id)), []).append(client.client_id)
    return found


def _tightness(group: Group) -> tuple[float, bool]:
    allowed = allowed_records(group)
    return float("inf") if allowed is None else allowed, not _limits(group)


def _limits(group: Group) -> dict[str, float]:
    return {
        key: float(value)
        for limiter in group.in_force
        for key, value in limiter.settings.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
