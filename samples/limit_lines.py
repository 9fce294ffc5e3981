# SPDX-License-Identifier: Apache-2.0
"""Makes the lines of limited clients from what was counted of them in an interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weir.limits.clients import Client
from weir.limits.facts import facts_of
from weir.limits.rates import IntervalRates
from weir.samples.lines import SampleKey
from weir.samples.schema import LimitLine

ClientCounts = tuple[Client, IntervalRates]


def cut_clients(clients: Iterable[Client]) -> list[ClientCounts]:
    """Cut off an interval of all limited clients; those that were idle are left out."""
    cut = [(client, client.rates.cut_interval()) for client in clients]
    return [(client, counts) for client, counts in cut if counts.records or counts.throttled_seconds]


def limit_lines(cut: Sequence[ClientCounts], key: SampleKey) -> Iterator[LimitLine]:
    """Yield a line for each client that still has a limit."""
    seconds = key.end_seconds - key.begin_seconds
    for client, counts in cut:
        if not client.groups:
            continue
        facts = facts_of(client)
        yield LimitLine(
            **key._asdict(),
            client_id=facts.client_id,
            role=facts.kind,
            connector=facts.connector,
            task=facts.task,
            entry=facts.entry,
            limit_group=facts.group,
            record_rate_limit=facts.record_rate_limit,
            share=round(facts.share, 4),
            records=counts.records,
            record_rate_avg=round(counts.records / seconds, 3),
            record_rate_max=counts.most,
            throttled_ratio=round(min(1.0, counts.throttled_seconds / seconds), 4),
        )
