# SPDX-License-Identifier: Apache-2.0
"""The verdict in plain Python: minute by minute, from the same rows as the tables have."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from weir.pipeline.page.read_verdict import FRESH_MINUTES, MOST_HURT, PACES
from weir.pipeline.page.verdict import NIGHT

Row = Mapping[str, Any]
ReplicaKey = tuple[str, int, int]
MINUTE = 60.0


def seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def replica_of(row: Row) -> ReplicaKey:
    return row["topic"], row["partition"], row["replica"]


class Expected:
    """Everything that a verdict says of the rows of tables, by the table's name."""

    def __init__(self, rows: Mapping[str, Sequence[Row]], since: datetime, until: datetime, zone: tzinfo) -> None:
        self._rows = rows
        self._since, self._until = since.timestamp(), until.timestamp()
        self._zone = zone
        self._rates = list(self._in_range(row for row in rows["broker_rates"] if row["window"] == "minute"))
        self._movers = self._spans([row for row in rows["moves"] if row["bytes_throttled"] > 0])
        self._slow = self._spans(rows["replica_lag"])
        self.sampled_until = max((self._minute(row) * MINUTE + MINUTE for row in self._rates), default=None)

    def _in_range(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            start = seconds(row["window_start"]) or 0.0
            if self._since - MINUTE < start < self._until:
                yield row

    @staticmethod
    def _minute(row: Row) -> int:
        return int((seconds(row["window_start"]) or 0.0) // MINUTE)

    def _spans(self, rows: Iterable[Row]) -> list[tuple[Row, float, float, set[int]]]:
        """Rows in the range, each with its start and end, and its minutes."""
        found = []
        for row in rows:
            start = seconds(row["start"]) or 0.0
            told = [
                (self._minute(of) + 1) * MINUTE
                for of in self._rows["behind_minutes"]
                if all(
                    of[name] == row[name] for name in ("topic", "partition", "replica", "side", "broker_id", "start")
                )
                and of["day"] == row["day"]
            ]
            end = seconds(row["end"])
            end = max(start, end if end is not None else max(told, default=start))
            if start < self._until and end >= self._since:
                first = math.floor(max(start, self._since) / MINUTE)
                last = max(first + 1, math.ceil(min(end, self._until) / MINUTE))
                found.append((row, start, end, set(range(first, last))))
        return found

    def why(self) -> dict[ReplicaKey, tuple[str, int]]:
        """Why each replica was out of sync, and in how many minutes others moved on the broker where that was most."""
        moving: defaultdict[int, set[int]] = defaultdict(set)
        for row in self._rates:
            if row["throttled"] and row["bytes"] > 0:
                moving[row["broker_id"]].add(self._minute(row))
        movers = {replica_of(row) for row, *_ in self._movers}
        found = {}
        for replica, of_keys in self._by_broker(self._slow).items():
            meanwhile = max(len(minutes & moving[key]) for key, minutes in of_keys.items())
            gone = any(
                absence["replica"] == replica[2]
                and (seconds(absence["start"]) or 0) < end
                and (seconds(absence["end"]) or seconds(absence["seen_until"]) or 0) > start
                for absence in self._rows["absences"]
                for row, start, end, _ in self._slow
                if replica_of(row) == replica
            )
            why = "mover" if replica in movers else "away" if gone else "hurt" if meanwhile else "other"
            found[replica] = why, meanwhile
        return found

    @staticmethod
    def _by_broker(
        spans: Iterable[tuple[Row, float, float, set[int]]],
    ) -> dict[ReplicaKey, dict[int, set[int]]]:
        found: defaultdict[ReplicaKey, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for row, _, _, minutes in spans:
            for key in {row["replica"], row["broker_id"]}:
                found[replica_of(row)][key] |= minutes
        return {replica: dict(of_keys) for replica, of_keys in found.items()}

    def worst_hurt(self) -> list[tuple[ReplicaKey, float]]:
        hurt = sorted((-minutes, replica) for replica, (why, minutes) in self.why().items() if why == "hurt")
        return [(replica, -minutes * 60.0) for minutes, replica in hurt[:MOST_HURT]]

    def others(self) -> tuple[float | None, float | None, int]:
        """The mean rates of what was not throttled, with throttled bytes and without, and the throttled bytes."""
        by_side: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        throttled: defaultdict[str, int] = defaultdict(int)
        moving = set()
        for row in self._rates:
            by_side[row["side"]][self._minute(row)] += 0.0 if row["throttled"] else row["mean_bytes_per_second"]
            if row["throttled"]:
                throttled[row["side"]] += row["bytes"]
                moving |= {self._minute(row)} if row["bytes"] > 0 else set()
        if not by_side:
            return None, None, 0
        side = min(by_side, key=lambda name: (-sum(by_side[name].values()), name))
        means = []
        for is_moving in (True, False):
            rates = [rate for minute, rate in by_side[side].items() if (minute in moving) is is_moving]
            means.append(sum(rates) / len(rates) if rates else None)
        return means[0], means[1], max(throttled.values(), default=0)

    def records(self) -> list[float | None]:
        """The mean records/s of all limited clients, in sampled minutes with throttled bytes and in those without."""
        moving: defaultdict[int, bool] = defaultdict(bool)
        for row in self._rates:
            moving[self._minute(row)] |= row["throttled"] and row["bytes"] > 0
        told: defaultdict[int, float] = defaultdict(float)
        for row in self._in_range(self._rows["limits"]):
            told[self._minute(row)] += row["mean_records_per_second"]
        return [
            statistics.fmean(told[minute] for minute in found) if found else None
            for found in ([minute for minute in moving if moving[minute] is is_moving] for is_moving in (True, False))
        ]

    def of_clients(self) -> dict[int, list[float | None]]:
        """By broker: what clients read and wrote a second in its minutes with throttled bytes, and in those before."""
        first = math.floor((self._since - MINUTE) / MINUTE) + 1
        moving: defaultdict[int, set[int]] = defaultdict(set)
        for row in self._rows["broker_rates"]:
            is_told = row["window"] == "minute" and row["throttled"] and row["bytes"] > 0
            if is_told and first - 60 <= self._minute(row) and self._minute(row) * MINUTE < self._until:
                moving[row["broker_id"]].add(self._minute(row))
        found: dict[int, list[float | None]] = {}
        for broker_id, minutes in moving.items():
            sums: defaultdict[bool, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
            for row in self._rows["client_rates"]:
                minute = self._minute(row)
                is_moving = minute in minutes
                later = min((of for of in minutes if of > minute), default=0)
                if row["broker_id"] != broker_id or minute < first - 60 or minute * MINUTE >= self._until:
                    continue
                if minute >= first if is_moving else first <= later <= minute + 60:
                    for place, name in enumerate(("bytes_out", "bytes_in", "seconds")):
                        sums[is_moving][place] += row[name]
            if True in sums:
                rates = [
                    [of / seconds for of in both] if seconds else [None] * 2
                    for *both, seconds in (sums[True], sums[False])
                ]
                found[broker_id] = [*rates[0], *rates[1]]
        return found

    def quota_minutes(self) -> dict[tuple[int, str, int], tuple[float, float]]:
        """By broker, side and minute: seconds held back, and seconds with throttled replicas."""
        sums: defaultdict[tuple[int, str, int, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for row in self._in_range(self._rows["throttle_minutes"]):
            of = sums[row["broker_id"], row["side"], self._minute(row), row["quota_id"]]
            for place, name in enumerate(("seconds_left_out", "bytes", "seconds")):
                of[place] += row[name]
        found: dict[tuple[int, str, int], tuple[float, float]] = {}
        for (broker_id, side, minute, _), (held, size, length) in sums.items():
            moving = length if size > 0 or held > 0 else 0.0
            before = found.get((broker_id, side, minute), (0.0, 0.0))
            found[broker_id, side, minute] = max(before[0], held), max(before[1], moving)
        return found

    def costs(self) -> dict[ReplicaKey, tuple[int, int, float, float]]:
        """The bytes of each mover, the minutes of those it hurt, the seconds it was held back, and its stall."""
        hurt: defaultdict[tuple[int, int], set[ReplicaKey]] = defaultdict(set)
        why = self.why()
        for replica, of_keys in self._by_broker(self._slow).items():
            for key, minutes in of_keys.items():
                for minute in minutes if why[replica][0] == "hurt" else ():
                    hurt[key, minute].add(replica)
        quotas = self.quota_minutes()
        found = {}
        by_broker = self._by_broker(self._movers)
        for replica, of_keys in by_broker.items():
            rows = [(row, minutes) for row, _, _, minutes in self._movers if replica_of(row) == replica]
            sizes: defaultdict[str, int] = defaultdict(int)
            sides: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
            for row, minutes in rows:
                sizes[row["side"]] += row["bytes"]
                sides[row["broker_id"], row["side"]] |= minutes
            found[replica] = (
                max(sizes.values()),
                max(sum(len(hurt[key, minute]) for minute in minutes) for key, minutes in of_keys.items()),
                max(
                    sum(quotas.get((*side, minute), (0.0, 0.0))[0] for minute in minutes)
                    for side, minutes in sides.items()
                ),
                max(row["longest_stall_seconds"] for row, _ in rows),
            )
        return found

    def ends(self) -> tuple[int, int, float | None, dict[ReplicaKey, tuple[int, list[float | None]] | None]]:
        """How many moved, and are out of sight; the last end; of open ones, messages behind and ends by each pace."""
        newest: dict[ReplicaKey, tuple[float, bool]] = {}
        for row, _, end, _ in self._movers:
            last = (end, row["end"] is None)
            newest[replica_of(row)] = max(last, newest.get(replica_of(row), last))
        fresh = (self.sampled_until or 0.0) - FRESH_MINUTES * MINUTE
        seen = {replica for replica, (end, is_open) in newest.items() if is_open and end > fresh}
        unseen = sum(is_open and end <= fresh for end, is_open in newest.values())
        last_end = max((end for end, is_open in newest.values() if not is_open), default=None)
        found: dict[ReplicaKey, tuple[int, list[float | None]] | None] = dict.fromkeys(seen)
        for replica in seen:
            behind: dict[int, int] = {}
            for row in self._in_range(self._rows["behind_minutes"]):
                if replica_of(row) == replica and row["max_lag_messages"] is not None:
                    minute = self._minute(row)
                    behind[minute] = max(behind.get(minute, 0), row["max_lag_messages"])
            if behind:
                found[replica] = self._paced(behind)
        return len(newest), unseen, last_end, found

    @staticmethod
    def _paced(behind: dict[int, int]) -> tuple[int, list[float | None]]:
        last = max(behind)
        ends: list[float | None] = []
        for length in PACES:
            first = min(minute for minute in behind if minute >= last - length)
            if first < last:
                pace = (behind[first] - behind[last]) / (last - first)
                ends.append((last + behind[last] / pace) * MINUTE if pace > 0 else None)
        return behind[last], ends

    def bound(self) -> dict[tuple[int, str], tuple[float, float]]:
        sums: defaultdict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for (broker_id, side, _), both in self.quota_minutes().items():
            for place, value in enumerate(both):
                sums[broker_id, side][place] += value
        return {key: (held, moving) for key, (held, moving) in sums.items() if moving > 0}

    def shares(self) -> tuple[float | None, float | None, float | None]:
        """The part of the time in which a quota bound: in all, by night, and in the last hour."""
        last_hour = int((self.sampled_until or 0) // MINUTE) - 60
        minutes = self.quota_minutes()
        kept = (
            list(minutes.values()),
            [both for (*_, minute), both in minutes.items() if self._is_night(minute)],
            [both for (*_, minute), both in minutes.items() if minute >= last_hour],
        )
        sums = [(sum(held for held, _ in both), sum(moving for _, moving in both)) for both in kept]
        found = [held / moving if moving else None for held, moving in sums]
        return found[0], found[1], found[2]

    def busiest(self) -> tuple[float | None, float | None, float | None]:
        """The highest minute of others on one broker's side, the same by night, and that of everything."""
        others: defaultdict[tuple[int, str, int], float] = defaultdict(float)
        everything: defaultdict[tuple[int, str, int], float] = defaultdict(float)
        for row in self._rates:
            key = row["broker_id"], row["side"], self._minute(row)
            everything[key] += row["mean_bytes_per_second"]
            others[key] += 0.0 if row["throttled"] else row["mean_bytes_per_second"]
        by_night = [rate for key, rate in others.items() if self._is_night(key[2])]
        return (
            max(others.values(), default=None),
            max(by_night, default=None),
            max(everything.values(), default=None),
        )

    def _is_night(self, minute: int) -> bool:
        hour = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=minute // 60)
        return hour.astimezone(self._zone).hour in NIGHT

    def rates(self) -> tuple[int, int] | None:
        spans = [
            (min(seconds(row["end"]) or 0.0, self._until), row["rate_bytes_per_second"])
            for row in self._rows["throttle_accuracy"]
            if (seconds(row["end"]) or 0.0) > self._since and (seconds(row["start"]) or 0.0) < self._until
        ]
        if not spans:
            return None
        newest = max(end for end, _ in spans)
        last = [rate for end, rate in spans if end >= newest - MINUTE]
        return min(last), max(last)
