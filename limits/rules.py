# SPDX-License-Identifier: Apache-2.0
"""What `[[limits.client]]` says: which clients a rule names, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from weir.limits.client_ids import connector_of
from weir.limits.rate_limiter import RateLimiter

Per = Literal["task", "connector"]

INTERNAL_TOPICS: Final = (
    "__*",
    *("connect-offsets", "connect-configs", "connect-status"),
    *("mm2-offsets.*.internal", "mm2-configs.*.internal", "mm2-status.*.internal", "mm2-offset-syncs.*.internal"),
    "*.checkpoints.internal",
)
"""Topics that do not count where a rule names none: Kafka's, Connect's and MirrorMaker 2's own, by default names."""


@dataclass(frozen=True, slots=True)
class NamedLimiter:
    """A limiter that a rule has: how to make one, and the settings that it gets."""

    name: str
    make: Callable[[], RateLimiter]
    settings: Mapping[str, object] = field(default_factory=dict)
    is_built_in: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether it cannot do anything: a built-in one without a limit."""
        return self.is_built_in and all(value is None for value in self.settings.values())


@dataclass(frozen=True, slots=True)
class Rule:
    """Limits for the clients whose ids fit `pattern`, which is as a shell's.

    Each client id has limiters of its own, or all tasks of a connector share them. Clients that fit an earlier one of
    `priority` go first where a shared limit binds.
    """

    pattern: str
    limiters: tuple[NamedLimiter, ...]
    per: Per = "task"
    exempt_topics: tuple[str, ...] = INTERNAL_TOPICS
    priority: tuple[str, ...] = ()

    def covers(self, client_id: str) -> bool:
        """Return whether it names this client."""
        return fnmatchcase(client_id, self.pattern)

    def group_of(self, client_id: str) -> str:
        """Return the name of what shares its limiters with this client."""
        return client_id if self.per == "task" else connector_of(client_id)

    def exempts(self, topic: str) -> bool:
        """Return whether records of a topic do not count."""
        return any(fnmatchcase(topic, pattern) for pattern in self.exempt_topics)

    def rank(self, client_id: str) -> int:
        """Return the client's place where clients that wait are ranked: the least goes first."""
        for rank, pattern in enumerate(self.priority):
            if fnmatchcase(client_id, pattern):
                return rank
        return len(self.priority)
