# SPDX-License-Identifier: Apache-2.0
"""The table of limited clients: what each may move, what it did, and for how long it waited."""

from __future__ import annotations

from collections.abc import Iterator

from weir.pipeline.page.contents import LimitedClient, LimitedClients
from weir.pipeline.page.markup import Child, Element, left_out_note, table
from weir.pipeline.page.texts import show_count, show_seconds

_LONGEST = 60  # characters of a client id that are shown


def limit_table(clients: LimitedClients) -> Iterator[Element]:
    """Yield the table, the client that waited longest first."""
    columns = (
        ("client", False),
        ("connector", False),
        ("limit, records/s", True),
        ("highest mean", True),
        ("highest second", True),
        ("records", True),
        ("waited for", True),
    )
    yield table(columns, (_client(client) for client in clients.shown), "Limited clients")
    yield from left_out_note(len(clients.shown), clients.count, "limited clients", "that waited longest")


def _client(of: LimitedClient) -> tuple[Child, ...]:
    task = "" if of.task is None else f" {of.task}"
    return (
        of.client_id[:_LONGEST] + ("…" if len(of.client_id) > _LONGEST else "") or "(no id)",
        "-" if of.connector is None else f"{of.connector[:_LONGEST]}, {of.role}{task}",
        "-" if of.limit is None else f"{of.limit:,.6g}",
        f"{of.highest_mean:,.0f}",
        show_count(of.highest_second),
        show_count(of.records),
        show_seconds(of.waited_seconds),
    )
