# SPDX-License-Identifier: Apache-2.0
"""Which connector and which task a client id belongs to: the names that Kafka's Connect and MirrorMaker 2 give.

Connect (Worker.java) names a task's clients `connector-consumer-<connector>-<task>` (sinks),
`connector-producer-<connector>-<task>` (sources) and `connector-dlq-producer-<connector>-<task>` (a sink's dead
letters). MirrorMaker 2 (MirrorConnectorConfig.java) names its own clients `[<user>|]A->B|<connector>-<task>|<role>`.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

Kind = Literal["sink", "source", "dlq", "mirror", "other"]


class ClientName(NamedTuple):
    """What a client id says. `connector` and `task` are None where it names none, as with an id set by hand."""

    kind: Kind
    connector: str | None = None
    task: int | None = None


_OTHER: Final = ClientName("other")
_TASK: Final = r"(?P<connector>.+)-(?P<task>\d{1,9})"  # the task is the last number: connectors may end with one too
_PATTERNS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("sink", re.compile(rf"connector-consumer-{_TASK}", re.DOTALL)),
    ("source", re.compile(rf"connector-producer-{_TASK}", re.DOTALL)),
    ("dlq", re.compile(rf"connector-dlq-producer-{_TASK}", re.DOTALL)),
    # what a user has set comes first, and may have any of these signs too
    ("mirror", re.compile(rf"(?:.*\|)?[^|]*->[^|]*\|{_TASK}\|[^|]*", re.DOTALL)),
)


def read_client_id(client_id: str) -> ClientName:
    """Return whose client id it is."""
    for kind, pattern in _PATTERNS:
        found = pattern.fullmatch(client_id)
        if found is not None:
            return ClientName(kind, found["connector"], int(found["task"]))
    return _OTHER


def connector_of(client_id: str) -> str:
    """Return what tasks of one connector share: its name, with that of the flow in MirrorMaker 2's ids.

    Sinks, sources and dead letters of one name are told apart, as their clients do different things. An id without a
    connector stands for itself.
    """
    name = read_client_id(client_id)
    if name.connector is None:
        return client_id
    if name.kind == "mirror":
        flow, _, role = client_id.rpartition("|")
        return f"{flow.rpartition('-')[0]}|{role}"
    return f"{name.kind}:{name.connector}"
