# SPDX-License-Identifier: Apache-2.0
"""What sidecars tell of a move: how far it is behind, what else passes, and who holds it up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from weir.cli.sidecars import admin_addresses, ask_all
from weir.planning.headroom import Passed


class Replicated(NamedTuple):
    """Record bytes of replicas that are not throttled, as one sidecar counted them; None for a side that it has not."""

    received: int | None
    sent: int | None


@dataclass(frozen=True, slots=True)
class Sidecars:
    """The sidecars at these admin addresses; None for none. Those that give no answer are left out."""

    admin: Sequence[str] | None

    def lag(self) -> int | None:
        """Return SumReplicaLag in messages, of the leaders whose sidecars answer; None where none does."""
        leaders = [status["sides"]["leader"] for status in self._statuses() if "leader" in status["sides"]]
        return sum(leader["lag"]["messages"] for leader in leaders) if leaders else None

    def passed(self, topics: frozenset[str]) -> Mapping[int, Passed]:
        """Return what has passed each broker besides the throttled replicas of some topics.

        A sidecar that does not throttle these topics counts their move with all else, so it tells nothing.
        """
        return {
            int(status["broker_id"]): _passed(status["sides"], status.get("network"))
            for status in self._statuses()
            if all(topics <= set(side["throttled_topics"]) for side in status["sides"].values())
        }

    def replicated(self) -> dict[int, Replicated]:
        """Return what has been replicated so far, by broker."""
        return {
            int(status["broker_id"]): Replicated(
                _unthrottled(status["sides"].get("follower")), _unthrottled(status["sides"].get("leader"))
            )
            for status in self._statuses()
        }

    def sentences(self) -> Mapping[int, str]:
        """Return who holds replicas up: a sentence of each broker whose sidecar knows it."""
        return {
            int(status["broker_id"]): str(side["held_up_by"]["sentence"])
            for status in self._statuses()
            for side in status["sides"].values()
            if side["held_up_by"]["by"] in ("quota", "replica")
        }

    def _statuses(self) -> Iterator[dict[str, Any]]:
        if self.admin:
            for reply in ask_all(admin_addresses(self.admin, None), "GET", "/v1/status"):
                if reply.error is None and isinstance(reply.value, dict) and reply.value.get("sides"):
                    yield reply.value


def _unthrottled(side: Mapping[str, Any] | None) -> int | None:
    return None if side is None else sum(one["bytes"] for one in side["replication"] if not one["throttled"])


def _passed(sides: Mapping[str, Any], network: Mapping[str, Any] | None) -> Passed:
    """Return what passed, by the link's counters where there are any and the move's bytes are counted here, too."""
    incoming = outgoing = 0.0
    throttled = {}
    for name, side in sides.items():
        relayed = side["relayed_bytes"]
        throttled[name] = sum(one["bytes"] for one in side["replication"] if one["throttled"])
        answers = relayed["answers"] - throttled[name]
        if name == "leader":
            incoming, outgoing = incoming + relayed["requests"], outgoing + answers
        else:
            incoming, outgoing = incoming + answers, outgoing + relayed["requests"]
    by_link = [network is not None and bool(sides.get(name, {}).get("connections")) for name in ("follower", "leader")]
    if network is not None and by_link[0]:
        incoming = network["received_bytes"] - throttled["follower"]
    if network is not None and by_link[1]:
        outgoing = network["sent_bytes"] - throttled["leader"]
    return Passed(incoming, outgoing, (by_link[0], by_link[1]))
