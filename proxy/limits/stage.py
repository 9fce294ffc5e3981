# SPDX-License-Identifier: Apache-2.0
"""What all connections of limited clients share, and the counts that metrics show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from weir.limits.clients import Client, Clients
from weir.limits.rate_limiter import Batch
from weir.limits.rules import Rule
from weir.protocol.fetch_versions import TOPIC_ID_SIZE
from weir.protocol.record_counts import RecordCounts
from weir.proxy.log import EventLog

LONGEST_CLIENT_ID: Final = 255
"""Characters of a client id that count: longer ones that begin alike are one client."""


class LimitStage:
    """The limits in force. `clock` gives monotonic seconds; `topic_name` the name of a topic id where it is known."""

    def __init__(
        self,
        clock: Callable[[], float],
        log: EventLog,
        topic_name: Callable[[bytes], bytes | None] = lambda topic_id: None,
    ) -> None:
        self.clock = clock
        self.clients = Clients(clock, self._fault)
        self.not_counted: Counter[str] = Counter()
        """Answers and requests that were not counted whole, by reason: `frame`, `partitions`, `batch`, `version`."""
        self.holds_cut: Counter[str] = Counter()
        """Requests that went before their pause was over, or were answered without the broker, by which of these."""
        self._log = log
        self._topic_name = topic_name

    def configure(self, rules: Sequence[Rule]) -> None:
        """Put rules in force. What is held is decided about again."""
        self.clients.configure(rules)

    def client(self, client_id: bytes | None) -> Client | None:
        """Return the client of an id as on the wire; None where no rule covers it. A missing id is an empty one."""
        text = b"" if client_id is None else client_id[: 4 * LONGEST_CLIENT_ID]
        return self.clients.of(text.decode("utf-8", "replace")[:LONGEST_CLIENT_ID])

    def count(self, client: Client, counts: RecordCounts) -> int:
        """Account for an answer or a request of `client` that has passed whole. Returns its records.

        Where answers are large, all of its code has left the processor's caches meanwhile: so it calls little.
        """
        if counts.fault is not None:
            self.not_counted[counts.fault] += 1
        total, batches = 0, []
        for topic, (records, size) in counts.topics.items():
            name = self._name_of(topic) if counts.by_id else topic.decode("utf-8", "replace")
            batches.append(tuple.__new__(Batch, (name, records, size)))
            total += records
        client.count(batches)
        return total

    def _name_of(self, topic: bytes) -> str:
        """Return the name of an id, where it is known; where there were too many topics, their records have none."""
        name = self._topic_name(topic) if len(topic) == TOPIC_ID_SIZE else topic
        return "" if name is None else name.decode("utf-8", "replace")

    def _fault(self, client: str, limiter: str, reason: str) -> None:
        self._log.error("limiter_disabled", client=client, limiter=limiter, reason=reason, effect="it limits no more")
