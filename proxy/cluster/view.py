# SPDX-License-Identifier: Apache-2.0
"""What is known of the cluster, who wants to know it, and who takes it. Each answer makes a new view."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from weir.proxy.cluster.removed_replicas import Replicas
from weir.proxy.layers import Layer
from weir.proxy.throttle.followed import Moves

InSyncReplicas = Mapping[tuple[bytes, int], frozenset[int]]
"""The ISR by topic (UTF-8) and partition: broker ids."""

Partitions = frozenset[tuple[bytes, int]]


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


class ToldMoves(NamedTuple):
    """What is being reassigned, and when the cluster was asked for it (clock seconds)."""

    moves: Moves
    asked_at: float


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the cluster answered last. What has not changed is the same object as in the view before.

    - `brokers`, by id: a new object with each answer that lists them.
    - `controller`: a broker's id, -1 where none is known.
    - `cluster_id`: None where the broker does not tell it.
    - `topics`, by name (UTF-8): only those of the last poll.
    - `in_sync`, `min_in_sync` (`min.insync.replicas` by topic), `under_min_isr`: of throttled topics.
    - `moves`: what is being reassigned, None before it is known: a new object with each answer.
    - `told_lists`: the topics whose lists of throttled replicas were told, while Kafka's own throttle has a rate.
    - `throttle`: Kafka's own throttle, None before it is known, and where it is not followed.
    - `names_generation`: grows when an id has another name (`TopicNames.generation`).
    """

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    racks: Mapping[int, str | None] = field(default_factory=dict)
    controller: int = -1
    cluster_id: str | None = None
    topics: Mapping[bytes, Topic] = field(default_factory=dict)
    in_sync: InSyncReplicas = field(default_factory=dict)
    min_in_sync: Mapping[bytes, int] = field(default_factory=dict)
    under_min_isr: Partitions = frozenset()
    moves: ToldMoves | None = None
    told_lists: frozenset[bytes] | None = None
    throttle: Layer | None = None
    names_generation: int = 0


NOTHING: Final = ClusterView()


class Wants(NamedTuple):
    """What the sidecar wants to know at the moment.

    - `throttled_topics`: the topics of which it has to be known who is in sync.
    - `topics_behind`: topics with replicas that are behind, a bounded number of them.
    - `brokers`: whether the brokers are asked for where no topic is.
    - `moves`: whether moves and racks are wanted, though Kafka's throttle is not followed.
    """

    throttled_topics: Callable[[], Collection[str]]
    topics_behind: Callable[[], Set[str]]
    brokers: Callable[[], bool]
    moves: Callable[[], bool]


def _ignore(_value: object) -> None:
    """Take a field that nobody wants."""


class Takers(NamedTuple):
    """Who takes the fields of the view with these names. Each is called once for each change."""

    names_generation: Callable[[int], None]
    in_sync: Callable[[InSyncReplicas], None] = _ignore
    under_min_isr: Callable[[Partitions], None] = _ignore
    brokers: Callable[[Mapping[int, Broker]], None] = _ignore
    racks: Callable[[Mapping[int, str | None]], None] = _ignore
    moves: Callable[[ToldMoves], None] = _ignore
    told_lists: Callable[[frozenset[bytes] | None], None] = _ignore
    throttle: Callable[[Layer], None] = _ignore
