# SPDX-License-Identifier: Apache-2.0
"""The metric families of limited clients: KIP-731's task metrics, by client id."""

from __future__ import annotations

from collections.abc import Iterator

from weir.limits.facts import facts_of
from weir.proxy.admin.exposition import Family, counter, gauge
from weir.proxy.limits.stage import LimitStage

KNOWN_NOT_COUNTED = ("frame", "partitions", "batch", "version")
KNOWN_CUT = ("answered", "passed", "dropped")


def limit_families(stage: LimitStage) -> Iterator[Family]:
    """Yield the families of limited clients. A client has series while it is among the last MOST_CLIENTS that came."""
    clients = list(stage.clients)
    yield gauge(
        "weir_task_record_rate_avg",
        "Records/s of a limited client over the last 30 s (KIP-731's record-rate-avg).",
        (((client.client_id,), round(client.rates.average(), 3)) for client in clients),
        "client_id",
    )
    yield gauge(
        "weir_task_record_rate_max",
        "Records in the greatest of the last 30 seconds (KIP-731's record-rate-max).",
        (((client.client_id,), client.rates.most()) for client in clients),
        "client_id",
    )
    yield gauge(
        "weir_task_throttled_ratio",
        "The part of the last 30 s in which a limited client was kept waiting (KIP-731's throttled-ratio).",
        (((client.client_id,), round(client.rates.throttled_ratio(), 4)) for client in clients),
        "client_id",
    )
    allowed = ((client, facts_of(client).allowed) for client in clients if client.groups)
    yield gauge(
        "weir_task_record_rate_limit",
        "Records/s that a limited client may move here, alone or with those that share its limit.",
        (((client.client_id,), round(rate, 3)) for client, rate in allowed if rate is not None),
        "client_id",
    )
    records = (((client.client_id,), client.rates.records) for client in clients)
    yield counter("weir_task_records", "Records of a limited client.", records, "client_id")
    evicted, disabled = stage.clients.evicted, stage.clients.disabled
    yield counter(
        "weir_limited_clients_evicted", "Limited clients that were forgotten, as too many others came.", evicted
    )
    yield counter(
        "weir_limiters_disabled",
        "Limiters that were disabled for one client, as they raised or asked for no possible pause.",
        disabled,
    )
    yield counter(
        "weir_records_not_counted",
        "Answers and requests of limited clients that were not counted whole, by reason.",
        {reason: stage.not_counted[reason] for reason in KNOWN_NOT_COUNTED},
        "reason",
    )
    yield counter(
        "weir_limit_holds_cut",
        "Requests held as long as a client bears, or till they gave way: answered, or passed; dropped: acks=0.",
        {then: stage.holds_cut[then] for then in KNOWN_CUT},
        "then",
    )
