# SPDX-License-Identifier: Apache-2.0
"""The figures of the five answers, against plain Python over odd worlds, and what is said of them."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.pipeline.page.past import (
    Past,
    absence,
    behind_minute,
    broker_minutes,
    client_minutes,
    lag,
    limited,
    minutes,
    move,
    quota,
)
from tests.pipeline.page.past import quota_minute as quota_minute_of
from tests.pipeline.page.verdict_oracle import Expected, ReplicaKey, Row
from tests.pipeline.parquet import START
from weir.pipeline.page.answers import answers, as_text
from weir.pipeline.page.read import read_page
from weir.pipeline.page.replica import Replica
from weir.pipeline.page.verdict import Verdict
from weir.pipeline.page.write import page_of
from weir.pipeline.tables import (
    ABSENCES,
    ALL_TABLES,
    BEHIND_MINUTES,
    BROKER_RATES,
    CLIENT_RATES,
    LIMITS,
    MOVES,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    THROTTLE_MINUTES,
    Table,
)

pytestmark = pytest.mark.long

BERLIN = ZoneInfo("Europe/Berlin")
LENGTH = 150  # minutes


def key_of(replica: Replica) -> ReplicaKey:
    return replica.topic, replica.partition, replica.broker_id


class World:
    """Tables of the minutes around a midnight, made up from a seed."""

    def __init__(self, seed: int) -> None:
        self.numbers = random.Random(seed)
        self.first = START + minutes(self.numbers.choice([0, 6 * 60, 23 * 60]))
        self.rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in ALL_TABLES}
        for broker_id in range(1, 4):
            self._broker(broker_id)
        for _ in range(self.numbers.choice([0, 2, 12])):
            self._span(MOVES)
        for _ in range(self.numbers.choice([0, 2, 12])):
            self._span(REPLICA_LAG)
        for _ in range(self.numbers.choice([0, 0, 2])):
            start = self._moment()
            seen = start + minutes(self.numbers.randrange(12))
            end = self.numbers.choice([None, seen])
            row = absence(self.numbers.randrange(1, 5), start, end, (seen - START) / minutes(1))
            self._put(ABSENCES, row, start)

    def _put(self, table: Table, row: Row, moment: datetime) -> None:
        self.rows[table.name].append({**row, "day": moment.date()})

    def _moment(self) -> datetime:
        return self.first + timedelta(seconds=self.numbers.randrange(LENGTH * 60))

    def _broker(self, broker_id: int) -> None:
        numbers = self.numbers
        for side in ("leader", "follower"):
            if numbers.random() < 0.2:
                continue
            start, rate = self.first + minutes(numbers.randrange(12)), numbers.choice([1000, 10**6])
            name = f"{side}.replication.throttled.rate"
            end = start + minutes(numbers.randrange(1, LENGTH))
            row = quota(start, end, rate, quota_id=name, side=side, broker_id=broker_id)
            self._put(THROTTLE_ACCURACY, row, start)
            for number in range(LENGTH):
                minute = self.first + minutes(number)
                if numbers.random() < 0.1:
                    continue
                moved = (numbers.choice([0, 0, numbers.random() * 10**6]), numbers.random() * 10**6)
                for rates in broker_minutes(broker_id, side, moved, start=minute):
                    self._put(BROKER_RATES, rates, minute)
                if numbers.random() < 0.6:
                    of_clients = client_minutes(
                        broker_id, (numbers.random() * 1e8, numbers.random() * 1e7), start=minute
                    )
                    self._put(CLIENT_RATES, {**of_clients[0], "seconds": numbers.choice([60.0, 12.5])}, minute)
                if number % 7 == broker_id and side == "leader":
                    self._put(LIMITS, limited(f"c-{broker_id}", number, minute), minute)
                for quota_id in (name, "second")[: numbers.choice([0, 1, 2])]:
                    held = numbers.choice([0.0, 60.0, round(numbers.random() * 60, 3)])
                    size = numbers.choice([0, 1000])
                    of = {**row, "quota_id": quota_id}
                    told = quota_minute_of(of, minute, size, seconds_left_out=held)
                    self._put(THROTTLE_MINUTES, told, minute)

    def _span(self, table: Table) -> None:
        """A span that one or both sides tell of; over midnight it is two rows."""
        numbers = self.numbers
        start = self._moment()
        length = timedelta(seconds=numbers.randrange(LENGTH * 60))
        end = numbers.choice([None, start + length])
        replica = numbers.randrange(1, 4)
        leader = numbers.randrange(1, 4)
        partition = numbers.randrange(6)
        for side, broker_id in numbers.sample([("leader", leader), ("follower", replica)], numbers.choice([1, 2])):
            behind = numbers.randrange(10**6)
            midnight = datetime.combine(start.date() + timedelta(days=1), datetime.min.time(), UTC)
            parts = [(start, end)] if start + length < midnight else [(start, None), (start, end)]
            for number, (begin, until) in enumerate(parts):
                day = start if number == 0 else midnight
                row = self._row(table, partition, begin, until, replica, side, broker_id)
                self._put(table, row, day)
                told_from = max(day, start).replace(second=0)
                told_until = min(start + length, midnight) if number == 0 else start + length
                minute = told_from
                while minute < told_until:
                    behind = max(0, behind + numbers.randrange(-30_000, 10_000))
                    if numbers.random() < 0.9:
                        told = {**behind_minute(row, minute), "max_lag_messages": numbers.choice([behind] * 9 + [None])}
                        self._put(BEHIND_MINUTES, told, minute)
                    minute += minutes(1)

    def _row(
        self,
        table: Table,
        partition: int,
        start: datetime,
        end: datetime | None,
        replica: int,
        side: str,
        broker_id: int,
    ) -> Row:
        if table is REPLICA_LAG:
            return {**lag(partition, start, end), "replica": replica, "side": side, "broker_id": broker_id}
        size = self.numbers.choice([0, self.numbers.randrange(10**9)])
        row = move(partition, start, end, size, replica=replica, side=side, broker_id=broker_id)
        return {**row, "longest_stall_seconds": self.numbers.random() * 100}

    def write(self, folder: Path) -> Path:
        past = Past(folder)
        for table in ALL_TABLES:
            for row in self.rows[table.name]:
                day: date = row["day"]
                shown = {name: value for name, value in row.items() if name != "day"}
                past.put(table, shown, day=datetime(day.year, day.month, day.day, tzinfo=UTC))
        return past.write()


def _about(wanted: object) -> Any:
    if isinstance(wanted, list):
        return [_about(one) for one in wanted]
    return None if wanted is None else pytest.approx(wanted, rel=1e-9, abs=1e-6)


def _stamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


@pytest.mark.parametrize("seed", range(12))
def test_verdict_is_that_of_plain_python(tmp_path: Path, seed: int) -> None:
    """The whole of it, and a part that cuts spans and minutes."""
    world = World(seed)
    folder = world.write(tmp_path / "tables")
    numbers = random.Random(seed)
    since = world.first + timedelta(seconds=numbers.choice([0, 1830]))
    until = world.first + timedelta(seconds=LENGTH * 60 - numbers.choice([0, 0, 950]))
    zone = numbers.choice([UTC, BERLIN])
    found = read_page(folder, since, until, 100, zone).verdict
    if found is None:
        assert not world.rows[BROKER_RATES.name]
        return
    wanted = Expected(world.rows, since, until, zone)
    assert _stamp(found.sampled_until) == wanted.sampled_until
    _check_impact(found, wanted)
    _check_costs_and_ends(found, wanted)
    assert {(of.broker_id, of.side): (of.seconds, of.moving_seconds) for of in found.bound} == {
        key: _about(both) for key, both in wanted.bound().items()
    }
    room = found.room
    assert room.rates == wanted.rates()
    assert [room.bound, room.bound_by_night, room.bound_last_hour] == [_about(share) for share in wanted.shares()]
    assert [room.others, room.others_by_night, room.most_seen] == [_about(rate) for rate in wanted.busiest()]


def _check_impact(found: Verdict, wanted: Expected) -> None:
    impact = found.impact
    why = [why for why, _ in wanted.why().values()]
    counts = [impact.movers, impact.hurt, impact.away, impact.others]
    assert counts == [why.count(name) for name in ("mover", "hurt", "away", "other")]
    assert [(key_of(replica), seconds) for replica, seconds in impact.worst_hurt] == wanted.worst_hurt()
    during, apart, size = wanted.others()
    assert [impact.during, impact.apart, impact.throttled_size] == [_about(during), _about(apart), size]
    found_rates = {of.broker_id: [of.read, of.written, of.read_before, of.written_before] for of in impact.of_clients}
    assert found_rates == {broker_id: _about(rates) for broker_id, rates in wanted.of_clients().items()}
    assert [impact.records_during, impact.records_apart] == [_about(rate) for rate in wanted.records()]


def _check_costs_and_ends(found: Verdict, wanted: Expected) -> None:
    costs = {key_of(of.replica): (of.size, of.hurt_minutes, of.bound_seconds, of.stall_seconds) for of in found.costs}
    assert costs == {replica: _about(cost) for replica, cost in wanted.costs().items()}
    count, unseen, last_end, moves = wanted.ends()
    assert (found.ends.count, found.ends.unseen, _stamp(found.ends.last_end)) == (count, unseen, _about(last_end))
    shown = {key_of(of.replica): of for of in found.ends.open}
    assert shown.keys() == moves.keys()
    for replica, of in moves.items():
        behind, ends = of or (0, [])
        open_move = shown[replica]
        known = [end for end in ends if end is not None]
        latest = max(known) if known and len(known) == len(ends) else None
        middle = ends[1] if ends else None
        figures = [_stamp(open_move.end), _stamp(open_move.earliest), _stamp(open_move.latest)]
        assert open_move.lag_messages == behind
        assert figures == [_about(middle), _about(min(known, default=None)), _about(latest)]


def _said(past: Past, zone: Any = UTC) -> list[str]:
    verdict = read_page(past.write(), START, START + minutes(120), 9, zone).verdict
    assert verdict is not None
    return [answer.sentence for answer in answers(verdict, zone)]


def test_of_what_was_not_sampled_nothing_is_known(past: Past) -> None:
    assert set(_said(past)) == {"Not known: nothing was sampled in this range."}


def test_without_a_throttle_nothing_binds_and_nothing_is_open(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (0, 1e6)))
    past.put(REPLICA_LAG, lag(0, START, START + minutes(1)))
    assert _said(past) == [
        "There was nothing to protect them from: no throttled replica got bytes. Out of sync besides: 1 for other"
        " reasons.",
        "None: no throttled replica was seen to move.",
        "No move is open.",
        "Nobody: no throttled replica moved under a quota.",
        "There is no rate to raise: no throttled replica moved under a quota.",
    ]


@pytest.fixture
def moving(past: Past) -> Past:
    """Two hours of a move to broker 3, under a quota of broker 1 that binds in the second; another replica suffers."""
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *[(1e6, 4e6)] * 120))
    past.put(BROKER_RATES, *broker_minutes(3, "follower", *[(1e6, 2e6)] * 120))
    row = quota(START, START + minutes(120), 1_000_000)
    past.put(THROTTLE_ACCURACY, row)
    for number in range(120):
        held = 60.0 if number >= 60 else 0.0
        past.put(THROTTLE_MINUTES, quota_minute_of(row, START + minutes(number), seconds_left_out=held))
    of = move(0, START, None, side="leader", broker_id=1)
    past.put(MOVES, of, move(1, START, START + minutes(30)))
    for number in range(120):
        behind = {"max_lag_messages": 240_000 - 1000 * number}
        past.put(BEHIND_MINUTES, {**behind_minute(of, START + minutes(number)), **behind})
    return past


def test_answers_tell_what_the_throttle_did(moving: Past) -> None:
    moving.put(REPLICA_LAG, lag(0, START, None), lag(7, START + minutes(10), START + minutes(20)))
    moving.put(LIMITS, limited("a", 6000), limited("b", 1200, waited=0.25))
    assert _said(moving, BERLIN) == [
        "Not wholly: 1 replica that was not moved was out of sync while throttled bytes passed on its broker. Out of"
        " sync besides: 1 moved. Replicas in sync got 4 MB/s meanwhile. 2 limited clients waited 45.0 s in all,"
        " and moved 1.0 records/s meanwhile.",
        "orders-0 on 3: while it moved, other replicas on one of its brokers were out of sync for 10 min together; a"
        " quota held it back for 1 h.",
        "2026-11-02 05:00 CET for 1 open move, by the paces up to 2026-11-02 03:00 CET.",
        "Broker 1, leader side: its quota bound for 50% (1 h) of the 2 h in which it moved throttled replicas.",
        "Only in small steps: at most 5 MB/s passed on a side of a broker so far, and 1 MB/s beside the others comes to"
        " that already. The quota bound for 100% of the last hour. It bound for 50% of all the time, 50% by night (22"
        " to 6). Other replication took at most 4 MB/s there, 4 MB/s by night.",
    ]


def test_clients_are_told_beside_moves_and_in_the_hour_before(past: Past) -> None:
    """Broker 1 moves from 01:30 to 01:40, and its clients fall by 2 MB/s: at 00:20 they did as they like."""
    start = START + minutes(90)
    past.put(BROKER_RATES, *broker_minutes(1, "leader", *[(1e6, 0)] * 10, start=start))
    past.put(BROKER_RATES, *broker_minutes(2, "leader", *[(1e6, 0)] * 10, start=start))
    past.put(BROKER_RATES, *broker_minutes(3, "leader", (0, 1e6)))  # so the range begins before that hour
    past.put(CLIENT_RATES, *client_minutes(1, *[(9e6, 9e6)] * 30, *[(43e6, 5e6)] * 60, *[(41e6, 5e6)] * 10))
    past.put(CLIENT_RATES, *client_minutes(2, *[(1e6, 2e6)] * 10, start=start))
    past.put(CLIENT_RATES, *client_minutes(3, *[(8e6, 8e6)] * 100))
    verdict = read_page(past.write(), None, None, 9).verdict
    assert verdict is not None
    protected = answers(verdict, UTC)[0]
    assert protected.sentence.endswith(
        " Clients of broker 1 read 41 MB/s and wrote 5 MB/s meanwhile, 43 MB/s and 5 MB/s in the hour before, the"
        " largest fall of 2 brokers' clients."
    )
    assert protected.details == ("Clients of broker 2 read 1 MB/s and wrote 2 MB/s meanwhile",)
    more = replace(verdict.impact.of_clients[0], read=44e6)
    rising = replace(verdict.impact, of_clients=(more, *verdict.impact.of_clients[1:]))
    protected = answers(replace(verdict, impact=rising), UTC)[0]
    assert protected.sentence.endswith(" 43 MB/s and 5 MB/s in the hour before: no fall of 2 brokers' clients.")


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"others_by_night": 1e6}, "Yes, from 1 MB/s to 4 MB/s: at most 5 MB/s passed on a side of a broker so far, "),
        ({"bound_last_hour": 0.04}, "It would change nothing: the quota of 1 MB/s bound for 4% of the last hour. "),
        ({"bound": 0.04, "bound_last_hour": None}, "It would change nothing: the quota of 1 MB/s bound for 4% of the"),
        ({"rates": None}, "There is no rate to raise: "),
    ],
)
def test_rate_may_rise_where_the_quota_binds_as_far_as_seen(moving: Past, changes: dict[str, Any], begins: str) -> None:
    verdict = read_page(moving.write(), None, None, 9).verdict
    assert verdict is not None
    found = answers(replace(verdict, room=replace(verdict.room, **changes)), UTC)
    assert found[4].sentence.startswith(begins)


def test_open_move_that_may_never_end_says_so(moving: Past) -> None:
    """By the slowest of its paces it comes no closer."""
    verdict = read_page(moving.write(), None, None, 9).verdict
    assert verdict is not None
    slow = replace(verdict.ends, open=tuple(replace(of, latest=None) for of in verdict.ends.open))
    found = answers(replace(verdict, ends=slow), UTC)[2]
    until = "(from 2026-11-02 04:00 UTC to no end in sight by the slowest pace)"
    assert found.sentence.startswith(f"2026-11-02 04:00 UTC for 1 open move {until}, ")
    assert found.details == (
        "orders-0 on 3: 2026-11-02 04:00 UTC (2026-11-02 04:00 UTC to no end in sight), 121,000 messages behind",
    )


def test_text_and_page_say_the_same(moving: Past) -> None:
    contents = read_page(moving.write(), None, None, 9)
    assert contents.verdict is not None
    found = answers(contents.verdict, UTC)
    page = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", page_of(contents, UTC)))
    text = as_text(found)
    assert max(map(len, text.splitlines())) <= 80
    flat = re.sub(r"\s+", " ", text)
    assert len(found) == 5
    for answer in found:
        for said in (answer.question, answer.sentence, answer.source, *answer.details):
            assert said in page
            assert said in flat
