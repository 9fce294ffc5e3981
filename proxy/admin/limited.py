# SPDX-License-Identifier: Apache-2.0
"""What the page and the status show of limited clients: who they are, and the last ten minutes of their limits."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from weir.limits.clients import Client, Clients, GroupKey
from weir.limits.facts import allowed_records, facts_of, sharing
from weir.proxy.slices import in_slices

MOST_SHOWN: Final = 20
"""The most clients in the status."""

MOST_SHARING: Final = 10
"""The most others of whom a client's row tells that they share its limit."""

MOST_CHARTS: Final = 8
"""The most limits whose last ten minutes are kept: those that made their clients wait for longest."""

_PER_SLICE: Final = 100


async def limited_status(clients: Clients) -> dict[str, Any]:
    """Return the clients that wait most, as plain JSON values. The event loop runs in between."""
    ranked = [
        (client.rates.throttled_ratio(), client.rates.average(), client.client_id, client)
        async for client in in_slices(clients, _PER_SLICE)
    ]
    ranked.sort(key=lambda row: (-row[0], -row[1], row[2]))
    together = sharing(clients)
    rows = [
        _row(client, ratio, average, together) for ratio, average, _, client in ranked[:MOST_SHOWN] if client.groups
    ]
    return {"clients": rows, "more": max(0, len(ranked) - MOST_SHOWN)}


def _row(client: Client, ratio: float, average: float, together: dict[GroupKey, list[str]]) -> dict[str, Any]:
    facts = facts_of(client)
    others = [one for one in together.get(facts.group_key, ()) if one != client.client_id]
    return {
        "client_id": facts.client_id,
        "kind": facts.kind,
        "connector": facts.connector,
        "task": facts.task,
        "entry": facts.entry,
        "per": facts.per,
        "group": facts.group,
        "limits": facts.limits,
        "share": round(facts.share, 4),
        "allowed_records_per_second": None if facts.allowed is None else round(facts.allowed, 1),
        "rank": facts.rank,
        "records": client.rates.records,
        "records_per_second": round(average, 1),
        "most_records_per_second": client.rates.most(),
        "throttled_ratio": round(ratio, 4),
        "shares_with": others[:MOST_SHARING],
        "shares_with_more": max(0, len(others) - MOST_SHARING),
    }


class _Sample(NamedTuple):
    """By group: the records of its clients so far, and the records/s that it may move here (None: any)."""

    at: float
    groups: dict[GroupKey, tuple[int, float | None]]


class LimitHistory:
    """The last samples of the limits that bind most; nothing is kept while there are no limited clients."""

    def __init__(self, clients: Clients, most_samples: int) -> None:
        self._clients = clients
        self._samples: deque[_Sample] = deque(maxlen=most_samples)

    def take(self, now: float) -> None:
        """Add a sample of the limits that bind most, at `now` (clock seconds)."""
        waited: dict[GroupKey, float] = {}
        records: dict[GroupKey, int] = {}
        for client in self._clients:
            for group in client.groups:
                key = group.rule.pattern, group.rule.per, group.rule.group_of(client.client_id)
                waited[key] = waited.get(key, 0.0) + client.rates.throttled_seconds
                records[key] = records.get(key, 0) + client.rates.records
        if not records and not self._samples:
            return
        most = heapq.nlargest(MOST_CHARTS, records, key=lambda key: (waited[key], records[key]))
        known = self._clients.groups
        shown = {key: (records[key], allowed_records(known[key])) for key in most if key in known}
        self._samples.append(_Sample(now, shown))
        if not any(sample.groups for sample in self._samples):
            self._samples.clear()

    def as_plain(self, after: float) -> list[dict[str, Any]]:
        """Return the samples taken later than `after`, limit by limit; the rates are since the sample before."""
        rows = [(old, new) for old, new in pairwise(self._samples) if new.at > after]
        keys = dict.fromkeys(key for _, new in reversed(rows) for key in new.groups)
        return [_columns(key, rows) for key in keys]


def _columns(key: GroupKey, rows: Sequence[tuple[_Sample, _Sample]]) -> dict[str, Any]:
    entry, per, group = key
    found = [
        (new.at, (new.groups[key][0] - old.groups[key][0]) / (new.at - old.at), new.groups[key][1])
        for old, new in rows
        if key in old.groups and key in new.groups
    ]
    return {
        "entry": entry,
        "per": per,
        "group": group,
        "at": [round(at, 3) for at, _, _ in found],
        "rate": [round(max(0.0, rate), 1) for _, rate, _ in found],
        "allowed": [None if allowed is None else round(allowed, 1) for _, _, allowed in found],
    }
