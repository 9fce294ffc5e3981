# SPDX-License-Identifier: Apache-2.0
"""What the page and the status show of limited clients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.clock import MovedClock
from tests.limits.limiters import Scripted, batches, built_in, rule
from weir.limits.clients import Client, Clients
from weir.limits.rules import NamedLimiter, Rule
from weir.proxy.admin.history import KEPT_SAMPLES
from weir.proxy.admin.limited import MOST_CHARTS, MOST_SHOWN, LimitHistory, limited_status

SINK = "connector-consumer-s3-{}"


class Limited:
    """Clients whose records a test counts second by second."""

    def __init__(self, *rules: Rule) -> None:
        self.clock = MovedClock(1000.0)
        self.clients = Clients(self.clock, lambda *fault: None)
        self.clients.configure(rules)
        self.history = LimitHistory(self.clients, KEPT_SAMPLES)

    def client(self, client_id: str) -> Client:
        found = self.clients.of(client_id)
        assert found is not None
        return found

    def second(self, count: int = 1, waited: float = 0.0, **records: int) -> None:
        for _ in range(count):
            for task, number in records.items():
                client = self.client(SINK.format(task.removeprefix("task")))
                client.count(batches(number))
                client.rates.throttled(self.clock(), self.clock() + waited)
            self.clock.move(1)
            self.history.take(self.clock())


async def rows(limited: Limited) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = (await limited_status(limited.clients))["clients"]
    return shown


async def test_status_tells_who_a_client_is_and_what_it_may() -> None:
    limited = Limited(rule("*", 5000), rule(SINK.format("*"), 1000, per="connector", priority=(SINK.format(1),)))
    limited.second(count=10, waited=0.5, task0=100, task1=300)
    limited.client("free")
    for group in limited.client(SINK.format(0)).groups:
        group.share = 0.5
    one, other, free = await rows(limited)
    assert one == {
        "client_id": SINK.format(1),
        "kind": "sink",
        "connector": "s3",
        "task": 1,
        "entry": "connector-consumer-s3-*",
        "per": "connector",
        "group": "sink:s3",
        "limits": {"record.rate.limit": 1000.0},
        "share": 0.5,
        "allowed_records_per_second": 500.0,
        "rank": 0,
        "records": 3000,
        "records_per_second": 300.0,
        "most_records_per_second": 300,
        "throttled_ratio": 0.5,
        "shares_with": [SINK.format(0)],
        "shares_with_more": 0,
    }
    assert (other["client_id"], other["rank"], other["records_per_second"]) == (SINK.format(0), 1, 100.0)
    assert (free["connector"], free["group"], free["limits"]) == (None, "free", {"record.rate.limit": 5000.0})


async def test_status_shows_those_that_wait_most_and_counts_the_rest() -> None:
    limited = Limited(rule("*", 10, per="connector"))
    limited.second(**{f"task{number}": number for number in range(MOST_SHOWN + 5)})
    limited.client(SINK.format(3)).rates.waits("it", limited.clock() - 1)
    shown = await limited_status(limited.clients)
    assert [row["task"] for row in shown["clients"]] == [3, *range(MOST_SHOWN + 4, 5, -1)]
    assert shown["more"] == 5
    assert shown["clients"][0]["shares_with_more"] == MOST_SHOWN + 4 - len(shown["clients"][0]["shares_with"])


def test_history_shows_a_shared_limits_rate_against_its_part() -> None:
    """The rate is that of all who share the limit, and the part is this sidecar's."""
    limited = Limited(rule(SINK.format("*"), 1000, per="connector"))
    limited.second(task0=100, task1=300)
    limited.second(task0=200, task1=300)
    next(iter(limited.clients.groups.values())).share = 0.25
    limited.second(task1=70)
    assert limited.history.as_plain(0) == [
        {
            "entry": "connector-consumer-s3-*",
            "per": "connector",
            "group": "sink:s3",
            "at": [1002.0, 1003.0],
            "rate": [500.0, 70.0],
            "allowed": [1000.0, 250.0],
        }
    ]
    assert limited.history.as_plain(1002.0)[0]["at"] == [1003.0]


def test_history_keeps_ten_minutes_of_the_limits_that_hold_most() -> None:
    limited = Limited(rule("*", 10), rule("*", None, per="connector"))
    for number in range(MOST_CHARTS):
        limited.client(SINK.format(number)).rates.throttled(0, number)
    limited.second(count=700, waited=1.0, task0=1)
    shown = limited.history.as_plain(0)
    assert len(shown) == MOST_CHARTS
    assert {len(one["at"]) for one in shown} == {KEPT_SAMPLES - 1}
    assert [one["allowed"][0] for one in shown if one["per"] == "connector"] == [None]


def test_history_is_empty_without_limits_and_after_they_ended() -> None:
    limited = Limited()
    limited.second(count=2)
    assert limited.history.as_plain(0) == []
    limited.clients.configure([rule("*", 10)])
    limited.second(count=3, task0=5)
    assert limited.history.as_plain(0)
    limited.clients.configure([])
    limited.second(count=KEPT_SAMPLES)
    assert limited.history.as_plain(0) == []
    assert not limited.history._samples


@pytest.mark.parametrize("share", [1.0, 0.3])
async def test_the_entry_that_allows_least_here_is_told(share: float) -> None:
    limited = Limited(rule("connector-*", 100), rule(SINK.format("*"), 50))
    wide, tight = limited.client(SINK.format(0)).groups
    wide.share = share
    (row,) = await rows(limited)
    assert row["entry"] == (tight if share == 1.0 else wide).rule.pattern


async def test_a_limiter_that_failed_is_no_limit_any_more() -> None:
    broken = NamedLimiter("broken", lambda: Scripted(ValueError("no"), "accumulate"), {"broken.limit": 7})
    limited = Limited(Rule("*", (broken, built_in("RecordRateLimiter", 100))))
    limited.second()
    client = limited.client("mine")
    (row,) = await rows(limited)
    assert row["limits"] == {"broken.limit": 7.0, "record.rate.limit": 100.0}
    client.count(batches(1))
    (row,) = await rows(limited)
    assert row["limits"] == {"record.rate.limit": 100.0}
