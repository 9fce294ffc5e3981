# SPDX-License-Identifier: Apache-2.0
"""What commands print of many sidecars: one line for all of them, and rows only for what is unlike the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from weir.cli.fleet_status import rows_of_reply
from weir.cli.quantities import show_duration
from weir.cli.sidecars import Reply, Row
from weir.planning.units import show_rate

FEW: Final = 10
"""Up to so many sidecars have rows of their own."""

MOST_ROWS: Final = 10
"""The most rows of what is behind, and the most lines that tell of single brokers."""

MOST_RANGES: Final = 5
"""The most ranges of brokers that a line names."""

COLUMNS: Final = ("brokers", "side", "rate", "quota", "behind", "messages", "time left")
NUMBERS: Final = ("rate", "behind", "messages", "time left")
_NONE: Final = "-"
_OF_A_BROKER: Final = re.compile(r"Broker (\d+)(.*)", re.DOTALL)


def in_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as in `1-3, 7`; of those in many pieces the first MOST_RANGES."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    more = sum(last - first + 1 for first, last in found[MOST_RANGES:])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in found[:MOST_RANGES]]
    return ", ".join(shown) + (f" and {more} more" if more else "")


def summary(replies: Sequence[Reply], moves: int) -> str:
    """Return the line for all: how many run, what moves, at which rate, for how long, and who holds it up most."""
    statuses = [reply.value for reply in replies if reply.error is None]
    sides = [(status["broker_id"], name, side) for status in statuses for name, side in status["sides"].items()]
    leaders = [side for _, name, side in sides if name == "leader"]
    lags = [side["lag"] for side in leaders]
    ready = sum(status["ready"] for status in statuses)
    parts = [f"{len(replies)} sidecars, {'all' if ready == len(replies) else ready} ready"]
    parts.append(f"{moves} partitions move" if moves else "nothing moves")
    if behind := sum(lag["partitions_behind"] for lag in lags):
        parts.append(f"{behind} replicas are behind by {sum(lag['messages'] for lag in lags):,} messages")
    parts.append(_against_quota(leaders))
    if any(lag["stands_still"] for lag in lags):
        parts.append("some stand still")
    elif left := max([lag["time_left_seconds"] or 0 for lag in lags], default=0):
        parts.append(f"{show_duration(left)} left")
    line = f"{', '.join(parts)}."
    slowest = max(sides, key=lambda one: one[2]["lag"]["messages"], default=None)
    if slowest is not None and slowest[2]["held_up_by"]["by"] != "nobody":
        line += f" Most is left at broker {slowest[0]}: {slowest[2]['held_up_by']['sentence']}"
    return line


def _against_quota(sides: Sequence[dict[str, Any]]) -> str:
    first = [side["quotas"][0] for side in sides]
    rate, quotas = sum(one["rate_bytes_per_second"] for one in first), [one["bytes_per_second"] for one in first]
    set_ = [quota for quota in quotas if quota is not None]
    return f"{show_rate(rate)} of {show_rate(sum(set_))}" if set_ else f"{show_rate(rate)}, without a quota"


def folded(replies: Sequence[Reply]) -> tuple[list[Row], int]:
    """Return a row for each side that is behind, most messages first, and one for all that are alike otherwise.

    Returns also how many rows of what is behind are left out.
    """
    behind: list[tuple[int, Row]] = []
    alike: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for reply in replies:
        if reply.error is not None or not reply.value["sides"]:
            continue
        for broker, _, _, side, rate, quota, origin, count, messages, left, _ in rows_of_reply(reply, None):
            source, _, _ = origin.partition(",")  # until when it holds is in `weir throttle show`
            shown = quota if origin == _NONE else f"{quota}, {source}"
            if count in ("0", _NONE):
                alike[side, shown].append((int(broker), rate))
            else:
                behind.append((int(messages), (broker, side, rate, shown, count, messages, left)))
    behind.sort(key=lambda one: -one[0])
    rows = [row for _, row in behind[:MOST_ROWS]]
    for (side, shown), some in alike.items():
        rates = {rate for _, rate in some}
        rate = rates.pop() if len(rates) == 1 else "various"
        rows.append((in_ranges(broker for broker, _ in some), side, rate, shown, "0", "0", _NONE))
    return rows, max(0, len(behind) - MOST_ROWS)


def versions(replies: Sequence[Reply]) -> Iterator[str]:
    """Yield a sentence where sidecars run different versions."""
    found: dict[str, list[int]] = defaultdict(list)
    for reply in replies:
        if reply.error is None and reply.value["broker_id"] is not None:
            found[str(reply.value["version"])].append(int(reply.value["broker_id"]))
    if len(found) > 1:
        yield f"Versions: {'; '.join(f'{name} on {in_ranges(brokers)}' for name, brokers in sorted(found.items()))}."


def together(sentences: Iterable[str]) -> list[str]:
    """Return MOST_ROWS sentences at most, and one that counts the rest. Those that differ by brokers alone are one."""
    found: dict[str, list[int]] = {}
    for sentence in sentences:
        match = _OF_A_BROKER.fullmatch(sentence)
        brokers = found.setdefault(sentence if match is None else match[2], [])
        if match is not None:
            brokers.append(int(match[1]))
    lines = []
    for rest, brokers in found.items():
        if len(brokers) > 1:
            rest = f" are {rest.removeprefix(' is ')}" if rest.startswith(" is ") else rest
            lines.append(f"Brokers {in_ranges(brokers)}{rest}")
        else:
            lines.append(f"Broker {brokers[0]}{rest}" if brokers else rest)
    more = len(lines) - MOST_ROWS
    return [*lines[:MOST_ROWS], f"{more} more such lines: --json has them."] if more > 0 else lines
