# SPDX-License-Identifier: Apache-2.0
"""The figures of `weir status --bootstrap-server`: one table of all sidecars, and what a cluster says of its moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weir.cli.fleet import shown
from weir.cli.quantities import show_duration
from weir.cli.sidecars import Reply, Row
from weir.planning.units import show_rate

if TYPE_CHECKING:
    from weir.control.cluster_admin import Partition
    from weir.control.fleet import ClusterState

COLUMNS = ("broker", "sidecar", "version", "side", "rate", "quota", "from", "behind", "messages", "time left", "state")
NUMBERS = ("broker", "quota", "rate", "behind", "messages", "time left")
_MOST_NAMED = 5
_NONE = "-"


def rows_of_reply(reply: Reply, broker: int | None) -> list[Row]:
    """Return a row for each side of a sidecar; one row for a sidecar that does not answer."""
    if reply.error is not None:
        number = _NONE if broker is None else str(broker)
        return [[number, str(reply.admin), *[_NONE] * (len(COLUMNS) - 3), "no answer"]]
    status: dict[str, Any] = reply.value
    if not status["sides"]:
        number = _NONE if status["broker_id"] is None else str(status["broker_id"])
        return [[number, str(reply.admin), str(status["version"]), *[_NONE] * (len(COLUMNS) - 4), str(status["state"])]]
    state = "ready" if status["ready"] else "not ready"
    whose = [str(status["broker_id"]), str(reply.admin), str(status["version"])]
    return [[*whose, *cells, state] for name, side in status["sides"].items() for cells in _quotas(name, side, status)]


def of_broker(reply: Reply, broker: int | None) -> Reply:
    """Return a reply with its broker's id, which a sidecar that waits for its file does not know."""
    if reply.error is not None or broker is None or reply.value["broker_id"] is not None:
        return reply
    return Reply(reply.admin, {**reply.value, "broker_id": broker})


def _quotas(name: str, side: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the cells of a side, and of each further quota in force on it."""
    lag = side["lag"]
    first, *others = side["quotas"]
    listed = status["settings"].get(f"{name}.replication.throttled.rate")
    behind = [str(lag["partitions_behind"]), str(lag["messages"]), _time_left(lag)]
    yield [name, *_rates(first), _NONE if listed is None else _origin(listed), *behind]
    for quota in others:
        standing = status["settings"].get(f"{name}.{quota['name']}.throttled.rate")
        origin = quota["name"] if standing is None else f"{quota['name']}, {_origin(standing)}"
        yield [name, *_rates(quota), origin, _NONE, _NONE, _NONE]


def _rates(quota: Mapping[str, Any]) -> list[str]:
    observed = ", observed" if quota["mode"] == "observe" else ""
    return [show_rate(quota["rate_bytes_per_second"]), f"{show_rate(quota['bytes_per_second'])}{observed}"]


def _origin(setting: Mapping[str, Any]) -> str:
    ends = setting.get("ends_in_seconds")
    return str(setting["source"]) if ends is None else f"{setting['source']}, {show_duration(ends)} left"


def _time_left(lag: Mapping[str, Any]) -> str:
    if lag["stands_still"]:
        return "stands still"
    return _NONE if lag["time_left_seconds"] is None else show_duration(lag["time_left_seconds"])


def held_up(replies: Sequence[Reply]) -> Iterator[str]:
    """Yield a sentence for each side on which something is behind, and for each sidecar that is not ready.

    What is among its troubles is told with these.
    """
    for status in _answered(replies):
        for reason in without_troubles(status):
            yield f"Broker {status['broker_id']} is not ready: {reason}."
        for name, side in status["sides"].items():
            if side["held_up_by"]["by"] != "nobody":
                still = " Its lag has not fallen for a minute." if side["lag"]["stands_still"] else ""
                yield f"Broker {status['broker_id']}, {name} side: {side['held_up_by']['sentence']}{still}"


def without_troubles(status: Mapping[str, Any]) -> list[str]:
    """Return why a sidecar is not ready, but for what it tells as a trouble, too."""
    return [str(reason) for reason in status["not_ready"] if reason not in status.get("troubles", {}).values()]


def none_behind_seconds(replies: Sequence[Reply]) -> list[float]:
    """Return for how long nothing has been behind, as each side of each sidecar says."""
    sides = (side for status in _answered(replies) for side in status["sides"].values())
    return [float(side["lag"]["none_for_seconds"]) for side in sides]


def not_following(replies: Sequence[Reply]) -> set[tuple[str, int, int]]:
    """Return (topic, partition, broker) of replicas that do not fetch, or get errors only."""
    sides = (side for status in _answered(replies) for side in status["sides"].values())
    rows = (row for side in sides for row in side["lag"]["worst"])
    return {(str(row["topic"]), int(row["partition"]), int(row["replica"])) for row in rows if row["stuck"]}


def sentences(state: ClusterState, stuck: Mapping[Partition, str], why_not_stale: str | None) -> Iterator[str]:
    """Yield what there is to say of a cluster: its moves, those that are stuck, and Kafka's own throttles."""
    if state.moves:
        yield f"Moving: {_some([f'{move.topic}-{move.partition}' for move in sorted(state.moves)])}."
    for move, reason in stuck.items():
        yield f"Stuck: {move.topic}-{move.partition}, {reason}."
    yield from silent(state)
    if state.throttles:
        yield f"Kafka's own throttle: {_some([f'{shown(set_)} = {set_.value}' for set_ in state.throttles])}."
    if state.clearable() and why_not_stale is None:
        yield (
            "It is stale: nothing moves, and nothing has been behind for ten minutes."
            " `weir throttle clear --stale` removes it."
        )


def silent(state: ClusterState) -> Iterator[str]:
    """Yield a sentence for each broker that gave no answer about its throttle."""
    for broker, reason in state.silent.items():
        yield f"Broker {broker} does not tell its own throttle: {reason}."


def as_plain(state: ClusterState, stuck: Mapping[Partition, str], why_not_stale: str | None) -> dict[str, Any]:
    """Return a cluster's moves, those that are stuck, and Kafka's own throttles as plain JSON values, for --json."""
    return {
        "moves": [
            {
                **move._asdict(),
                "adding": list(reassignment.adding_replicas),
                "removing": list(reassignment.removing_replicas),
                "stuck": stuck.get(move),
            }
            for move, reassignment in sorted(state.moves.items())
        ],
        "replicas_out_of_sync": state.out_of_sync,
        "silent_brokers": {str(broker): reason for broker, reason in state.silent.items()},
        "throttles": [throttle._asdict() for throttle in state.throttles],
        "stale": [throttle._asdict() for throttle in state.clearable() if why_not_stale is None],
        "why_not_stale": why_not_stale,
    }


def _answered(replies: Sequence[Reply]) -> list[dict[str, Any]]:
    return [reply.value for reply in replies if reply.error is None]


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more
