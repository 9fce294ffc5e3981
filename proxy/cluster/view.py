"""What is known of the cluster. Each answer makes a new view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from weir.quota.removed_replicas import Replicas


class Broker(NamedTuple):
    """Where a broker listens for clients, and its rack."""

    host: str
    port: int
    rack: str | None = None


class Topic(NamedTuple):
    """A topic with its id, which is NO_ID where it has none.

    `partitions` has the replicas of each partition, None where the broker reports an error for one. It is empty where
    the topic does not exist, and None where nobody asked for partitions or the broker could not tell.
    """

    topic_id: bytes
    partitions: Mapping[int, Replicas | None] | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the cluster answered last. `topics`, by name (UTF-8), has only those of the last poll.

    `min_in_sync` is `min.insync.replicas` by topic; `controller` is a broker's id, -1 where none is known.
    `cluster_id` is None where the broker does not tell it.
    """

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controller: int = -1
    topics: Mapping[bytes, Topic] = field(default_factory=dict)
    min_in_sync: Mapping[bytes, int] = field(default_factory=dict)
    cluster_id: str | None = None
