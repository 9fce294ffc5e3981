# SPDX-License-Identifier: Apache-2.0
"""Clients, what they share, whose turn it is, and what becomes of them when rules change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import MovedClock
from tests.limits.limiters import Line, Scripted, batches, built_in, rule
from weir.limits.clients import Client, Clients
from weir.limits.group import TURN_SECONDS, Group
from weir.limits.rate_limiter import Batch
from weir.limits.rules import NamedLimiter, Rule

SINK = "connector-consumer-s3-{}"


def clients(*rules: Rule, clock: MovedClock | None = None, most: int = 1000) -> tuple[Clients, MovedClock, list[str]]:
    clock = clock or MovedClock()
    faults: list[str] = []
    made = Clients(clock, lambda client, limiter, reason: faults.append(f"{client} {limiter}: {reason}"), most)
    made.configure(rules)
    return made, clock, faults


def client(of: Clients, client_id: str = "mine") -> Client:
    found = of.of(client_id)
    assert found is not None
    return found


@given(limits=st.tuples(*[st.none() | st.integers(1, 1000)] * 3), records=st.integers(1, 1000))
def test_pause_is_the_longest_of_the_limiters_not_their_sum(
    limits: tuple[int | None, int | None, int | None], records: int
) -> None:
    names = "RecordRateLimiter", "RecordBatchRateLimiter", "ByteRateLimiter"
    limiters = tuple(built_in(name, limit) for name, limit in zip(names, limits, strict=True))
    found, _, _ = clients(Rule("*", limiters))
    pauses = [units / limit for units, limit in zip((records, 1, 100 * records), limits, strict=True) if limit]
    client(found).count(batches(records))
    assert client(found).pause() == pytest.approx(max(pauses, default=0))


@pytest.mark.parametrize("rules", [(rule(records=100),), (rule("m*", 1e6), rule(records=100))])
def test_a_client_is_free_where_every_request_would_go_at_once(rules: tuple[Rule, ...]) -> None:
    found, clock, _ = clients(*rules)
    mine, first, second = client(found), Line("first"), Line("second")
    assert mine.is_free()
    mine.count(batches(50))
    assert not mine.is_free(), "a pause is not over"
    assert mine.asks(first) > 0
    assert mine.asks(second) > 0
    clock.move(0.6)
    assert not mine.is_free(), "two are in line"
    mine.goes(first)
    mine.leaves(second)
    assert not mine.is_free(), "the answer to the first is waited for"
    mine.leaves(first)
    assert mine.is_free()


def test_every_rule_that_covers_a_client_counts() -> None:
    found, _, _ = clients(rule("*", 1000), rule("connector-*", 100), rule("other", 1))
    for name, pause in ((SINK.format(0), 0.5), ("mine", 0.05)):
        client(found, name).count(batches(50))
        assert client(found, name).pause() == pytest.approx(pause)


def test_a_client_that_no_rule_covers_is_none() -> None:
    found, _, _ = clients(rule("connector-*"))
    assert found.of("mine") is None is found.of("mine")


def test_each_task_has_the_limit_or_all_tasks_together() -> None:
    found, _, _ = clients(rule(SINK.format("*"), 100))
    client(found, SINK.format(0)).count(batches(50))
    assert client(found, SINK.format(1)).pause() == 0
    found, _, _ = clients(rule(SINK.format("*"), 100, per="connector"))
    client(found, SINK.format(0)).count(batches(50))
    assert client(found, SINK.format(1)).pause() == pytest.approx(0.5)


def test_internal_topics_do_not_count() -> None:
    found, _, _ = clients(rule(records=100, exempt_topics=("connect-offsets", "__*")))
    mine = client(found)
    mine.count([*batches(50, topic="connect-offsets"), *batches(50, topic="__consumer_offsets")])
    assert mine.pause() == 0
    mine.count([*batches(50, topic="connect-offsets"), *batches(50)])
    assert mine.pause() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("topic", "counts"),
    [
        *(("__consumer_offsets", False), ("connect-offsets", False), ("connect-configs", False)),
        *(("connect-status", False), ("mm2-offsets.A.internal", False), ("mm2-configs.A.internal", False)),
        *(("mm2-status.A.internal", False), ("mm2-offset-syncs.B.internal", False)),
        *(("A.checkpoints.internal", False), ("orders.internal", True), ("A.orders", True), ("", True)),
    ],
)
def test_internal_topics_of_default_names_are_exempt_others_not(topic: str, counts: bool) -> None:
    found, _, _ = clients(rule(records=100))
    mine = client(found)
    mine.count(batches(50, topic=topic))
    assert mine.pause() == pytest.approx(0.5 if counts else 0)
    assert mine.rates.records == (50 if counts else 0)


def test_records_that_only_one_of_two_entries_exempts_are_told() -> None:
    found, _, _ = clients(rule("*", 100, exempt_topics=("orders",)), rule("m*", None, exempt_topics=()))
    mine = client(found)
    mine.count(batches(50))
    assert (mine.pause(), mine.rates.records) == (0, 50)


def test_a_share_of_the_limit_is_kept_whatever_limits() -> None:
    found, clock, _ = clients(rule(records=100))
    mine = client(found)
    mine.groups[0].share = 0.25
    mine.count(batches(50))
    assert mine.pause() == pytest.approx(2)
    clock.move(1)
    mine.groups[0].share = 1.0  # half of what is owed is left
    assert mine.pause() == pytest.approx(0.25)


def test_requests_of_a_group_go_one_by_one_in_their_order() -> None:
    found, clock, _ = clients(rule(SINK.format("*"), 100, per="connector", priority=(SINK.format(2),)))
    tasks = [client(found, SINK.format(number)) for number in range(3)]
    lines = [Line(str(number)) for number in range(3)]
    tasks[0].count(batches(10))
    assert [task.asks(line) for task, line in zip(tasks, lines, strict=True)] == [pytest.approx(0.1)] * 3
    clock.move(0.1)
    assert tasks[0].asks(lines[0]) == TURN_SECONDS  # another one has priority
    assert tasks[2].asks(lines[2]) == 0
    tasks[2].goes(lines[2])
    assert tasks[0].asks(lines[0]) == pytest.approx(TURN_SECONDS)  # its answer has not come
    tasks[2].count(batches(10))
    tasks[2].leaves(lines[2])
    assert tasks[0].asks(lines[0]) == pytest.approx(0.1)
    clock.move(0.1)
    assert tasks[1].asks(lines[1]) == TURN_SECONDS  # who came first goes first
    assert tasks[0].asks(lines[0]) == 0
    tasks[0].goes(lines[0])
    clock.move(TURN_SECONDS)
    assert tasks[1].asks(lines[1]) == 0  # an answer that does not come holds nobody up for longer
    tasks[1].goes(lines[1])
    assert lines[0].woken == 0


def test_who_comes_next_is_expected_to_wait_for_all_in_line() -> None:
    """Each is taken to cost what the latest ones did."""
    found, clock, _ = clients(rule(records=100))
    mine = client(found)
    for _ in range(50):
        mine.count(batches(100))
        clock.move(1)
    lines = [Line(str(number)) for number in range(3)]
    mine.count(batches(100))
    for line in lines:
        mine.asks(line)
    lines[2].is_idle = True  # it is not expected to bring anything
    assert mine.expected_wait() == pytest.approx(1 + 2, rel=0.05)
    mine.groups[0].share = 0.5
    assert mine.expected_wait() == pytest.approx(2 * (1 + 2), rel=0.05)


def test_an_answer_without_records_gives_the_turn_on_at_once() -> None:
    found, clock, _ = clients(rule(SINK.format("*"), 100, per="connector"))
    tasks = [client(found, SINK.format(number)) for number in range(2)]
    lines = [Line(str(number)) for number in range(2)]
    tasks[0].count(batches(10))
    for task, line in zip(tasks, lines, strict=True):
        task.asks(line)
    clock.move(0.1)
    assert tasks[0].asks(lines[0]) == 0
    tasks[0].goes(lines[0])
    assert tasks[1].asks(lines[1]) > 0
    tasks[0].count([])
    tasks[0].leaves(lines[0])
    assert lines[1].woken == 1
    assert tasks[1].asks(lines[1]) == 0


def test_without_a_limit_nobody_waits_for_a_turn() -> None:
    found, _, _ = clients(rule("*", per="connector"))
    assert [client(found, SINK.format(number)).asks(Line()) for number in range(5)] == [0] * 5


def test_changed_rule_keeps_what_is_owed_and_wakes_who_waits() -> None:
    found, clock, _ = clients(rule(records=100))
    mine, line = client(found), Line()
    mine.count(batches(500))
    assert mine.asks(line) == pytest.approx(5)
    clock.move(1)
    found.configure([rule(records=1000)])
    assert line.woken == 1
    assert mine.asks(line) == pytest.approx(0.4)
    assert client(found) is mine
    found.configure([rule("other", 1)])
    assert line.woken == 2
    assert mine.asks(line) == 0
    assert found.of("mine") is None


def test_a_rule_with_other_limiters_begins_anew() -> None:
    theirs = Scripted(7.0)
    found, _, _ = clients(Rule("*", (NamedLimiter("theirs", lambda: theirs),)))
    mine = client(found)
    assert mine.pause() == 7
    found.configure([rule(records=100)])
    assert theirs.calls[-1] == "close"
    assert mine.pause() == 0


def test_failing_limiter_is_counted_and_told_with_its_client() -> None:
    made = [Scripted(RuntimeError("no")), Scripted(0.5)]
    left = list(made)
    found, _, faults = clients(Rule("*", (NamedLimiter("theirs", lambda: left.pop(0)),)))
    assert [client(found, name).pause() for name in ("mine", "yours")] == [0, 0.5]  # for that client alone
    assert faults == ["mine theirs: throttle_time raised RuntimeError('no')"]
    assert found.disabled == 1


def test_client_unseen_for_longest_goes_and_its_limiters_close() -> None:
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted())
        return made[-1]

    found, _, _ = clients(Rule("*", (NamedLimiter("theirs", make),)), most=3)
    for name in ("a", "b", "c", "a", "d"):
        client(found, name)
    assert [one.client_id for one in found] == ["c", "a", "d"]
    assert found.evicted == 1
    assert ["close" in limiter.calls for limiter in made] == [False, True, False, False]


def test_ids_that_no_rule_covers_take_no_lasting_memory() -> None:
    found, _, _ = clients(rule("connector-*"), most=10)
    kept = client(found, SINK.format(0))
    for number in range(1000):
        assert found.of(f"other-{number}") is None
    assert len(found._uncovered) <= 10
    assert found.of(SINK.format(0)) is kept


def test_what_connector_tasks_share_stays_while_any_task_does() -> None:
    found, _, _ = clients(rule(SINK.format("*"), 100, per="connector"), most=2)
    client(found, SINK.format(0)).count(batches(500))
    for number in (1, 2, 3):
        assert client(found, SINK.format(number)).pause() == pytest.approx(5)


def test_who_is_sent_away_keeps_its_place_and_nobody_awaits_it() -> None:
    clock = MovedClock()
    group = Group(rule("c", 100), clock, lambda name, reason: None)
    first, second, third = Line("first"), Line("second"), Line("third")
    group.take((Batch("t", 10, 100),))
    for line in (first, second, third):
        assert group.asks(line, 0) == pytest.approx(0.1)
    group.sent_away(first)
    clock.move(0.11)
    assert group.asks(third, 0) == TURN_SECONDS
    assert group.asks(second, 0) == 0, "the first is not there"
    assert group.asks(first, 0) == 0
    assert group.asks(second, 0) == 0
    group.take((Batch("t", 10, 100),))
    assert group.asks(first, 0) > 0
    clock.move(0.2)
    assert group.asks(second, 0) == TURN_SECONDS, "the first is back in its place"
    group.sent_away(first)
    group.leaves(first)
    group.asks(first, 0)
    assert group.asks(second, 0) == 0, "who has left has no place any more"


def test_what_an_earlier_process_counted_is_owed_under_its_rule() -> None:
    """At the same share of the limit, and without what has been counted here being forgotten."""
    rules = rule("*", 100), rule("s3-*", 10, per="connector")
    before, clock, _ = clients(*rules)
    client(before).count(batches(300))
    client(before, "s3-0").count(batches(50))
    owed = before.owed()
    assert sorted(seconds for *_, seconds in owed) == pytest.approx([0.5, 3, 5])
    assert [seconds for *_, seconds in client(before).owed()] == pytest.approx([3])
    after, clock, _ = clients(rules[0])
    client(after, "s3-0").count(batches(100))
    after.owe(owed)
    assert [client(after, name).pause() for name in ("mine", "s3-0", "other")] == pytest.approx([3, 1, 0])
    client(after).count(batches(100))
    clock.move(1.5)
    assert client(after).pause() == pytest.approx(2.5)
