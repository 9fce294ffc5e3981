"""The metric families of limited clients: KIP-731's task metrics, by client id."""

from __future__ import annotations

from collections.abc import Iterator

from weir.limits.facts import facts_of
from weir.proxy.admin.exposition import Family
from weir.proxy.limits.stage import LimitStage

KNOWN_NOT_COUNTED = ("frame", "partitions", "batch", "version")
KNOWN_CUT = ("answered", "passed", "dropped")


def limit_families(stage: LimitStage) -> Iterator[Family]:
    """Yield the families of limited clients. A client has series while it is among the last MOST_CLIENTS that came."""
    clients = list(stage.clients)
    yield Family(
        "weir_task_record_rate_avg",
        "gauge",
        "Records/s of a limited client over the last 30 s (KIP-731's record-rate-avg).",
        ("client_id",),
        (((client.client_id,), round(client.rates.average(), 3)) for client in clients),
    )
    yield Family(
        "weir_task_record_rate_max",
        "gauge",
        "Records in the greatest of the last 30 seconds (KIP-731's record-rate-max).",
        ("client_id",),
        (((client.client_id,), client.rates.most()) for client in clients),
    )
    yield Family(
        "weir_task_throttled_ratio",
        "gauge",
        "The part of the last 30 s in which a limited client was kept waiting (KIP-731's throttled-ratio).",
        ("client_id",),
        (((client.client_id,), round(client.rates.throttled_ratio(), 4)) for client in clients),
    )
    yield Family(
        "weir_task_record_rate_limit",
        "gauge",
        "Records/s that a limited client may move here, alone or with those that share its limit.",
        ("client_id",),
        (
            ((client.client_id,), round(allowed, 3))
            for client in clients
            if client.groups and (allowed := facts_of(client).allowed) is not None
        ),
    )
    yield Family(
        "weir_task_records",
        "counter",
        "Records of a limited client.",
        ("client_id",),
        (((client.client_id,), client.rates.records) for client in clients),
    )
    yield Family(
        "weir_limited_clients_evicted",
        "counter",
        "Limited clients that were forgotten, as too many others came.",
        (),
        [((), stage.clients.evicted)],
    )
    yield Family(
        "weir_limiters_disabled",
        "counter",
        "Limiters that were disabled for one client, as they raised or asked for no possible pause.",
        (),
        [((), stage.clients.disabled)],
    )
    yield Family(
        "weir_records_not_counted",
        "counter",
        "Answers and requests of limited clients that were not counted whole, by reason.",
        ("reason",),
        [((reason,), stage.not_counted[reason]) for reason in KNOWN_NOT_COUNTED],
    )
    yield Family(
        "weir_limit_holds_cut",
        "counter",
        "Requests held for as long as a client bears, then answered or passed; or dropped: a producer left (acks=0).",
        ("then",),
        [((then,), stage.holds_cut[then]) for then in KNOWN_CUT],
    )
