"""What is known of the cluster. Each answer makes a new view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quota.removed_replicas import Replicas


class Broker(NamedTuple):
    """Where a broker listens for clients, and its rack."""

    host: str
    port: int
    rack: str | None = None


class Topic(NamedTuple):
    """A topic by its id, NO_ID where it has none.

    `partitions` has its partitions' replicas, None where the broker has an error for one. It is empty where the topic
    does not exist, and None where nobody asked for them or the broker could not tell.
    """

    topic_id: bytes
    partitions: Mapping[int, Replicas | None] | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """`topics` has those that the last poll asked for and was told, by name (UTF-8); the rest is what was told last.

    `min_in_sync` is `min.insync.replicas` by topic; `controller` a broker's id, -1 where none is known.
    """

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controller: int = -1
    topics: Mapping[bytes, Topic] = field(default_factory=dict)
    min_in_sync: Mapping[bytes, int] = field(default_factory=dict)
