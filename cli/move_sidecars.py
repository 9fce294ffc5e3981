"""What sidecars tell of a move: how far it is behind, what else passes, and who holds it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from weir.cli.sidecars import admin_addresses, ask_all
from weir.planning.headroom import Passed


def lag(admin: Sequence[str] | None) -> int | None:
    """Return SumReplicaLag in messages, of the leaders whose sidecars answer; None where none does."""
    if not admin:
        return None
    lags = [status["sides"]["leader"]["lag"]["messages"] for status in _statuses(admin) if "leader" in status["sides"]]
    return sum(lags) if lags else None


def passed(admin: Sequence[str] | None) -> Callable[[frozenset[str]], Mapping[int, Passed]]:
    """Return a function that asks what has passed each broker besides the throttled replicas of some topics.

    A sidecar that does not throttle these topics counts their move with all else, so it tells nothing.
    """

    def ask(topics: frozenset[str]) -> Mapping[int, Passed]:
        return {int(status["broker_id"]): _passed(status) for status in _statuses(admin) if _throttles(status, topics)}

    return ask


class Replicated(NamedTuple):
    """Record bytes of replicas that are not throttled, as one sidecar counted them; None for a side that it has not."""

    received: int | None
    sent: int | None


def replicated(admin: Sequence[str] | None) -> dict[int, Replicated]:
    """Ask what has been replicated so far, by broker."""
    return {
        int(status["broker_id"]): Replicated(
            _unthrottled(status["sides"].get("follower")), _unthrottled(status["sides"].get("leader"))
        )
        for status in _statuses(admin)
    }


def sentences(admin: Sequence[str] | None) -> Callable[[], Mapping[int, str]]:
    """Return a function that asks who holds replicas up: a sentence of each broker whose sidecar knows it."""

    def ask() -> Mapping[int, str]:
        return {
            int(status["broker_id"]): str(side["held_up_by"]["sentence"])
            for status in _statuses(admin)
            for side in status["sides"].values()
            if side["held_up_by"]["by"] in ("quota", "replica")
        }

    return ask


def _statuses(admin: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    if admin:
        for reply in ask_all(admin_addresses(admin, None), "GET", "/v1/status"):
            if reply.error is None and isinstance(reply.value, dict) and "sides" in reply.value:
                yield reply.value


def _throttles(status: Mapping[str, Any], topics: frozenset[str]) -> bool:
    return all(topics <= set(side["throttled_topics"]) for side in status["sides"].values())


def _unthrottled(side: Mapping[str, Any] | None) -> int | None:
    return None if side is None else sum(one["bytes"] for one in side["replication"] if not one["throttled"])


def _passed(status: Mapping[str, Any]) -> Passed:
    incoming = outgoing = 0.0
    for name, side in status["sides"].items():
        relayed = side["relayed_bytes"]
        answers = relayed["answers"] - sum(one["bytes"] for one in side["replication"] if one["throttled"])
        if name == "leader":
            incoming, outgoing = incoming + relayed["requests"], outgoing + answers
        else:
            incoming, outgoing = incoming + answers, outgoing + relayed["requests"]
    return Passed(incoming, outgoing)
