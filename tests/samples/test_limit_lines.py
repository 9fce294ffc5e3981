# SPDX-License-Identifier: Apache-2.0
"""Lines of limited clients."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from tests.limits.limiters import batches, rule
from weir.limits.clients import Client, Clients
from weir.limits.rules import Rule
from weir.samples.limit_lines import cut_clients, limit_lines
from weir.samples.lines import SampleKey
from weir.samples.schema import LimitLine

SINK = "connector-consumer-s3-{}"


class Sampled:
    """Limited clients of which a sample is taken after each ten seconds."""

    def __init__(self, *rules: Rule) -> None:
        self.clock = MovedClock()
        self.clients = Clients(self.clock, lambda *fault: None)
        self.clients.configure(rules)

    def client(self, client_id: str) -> Client:
        found = self.clients.of(client_id)
        assert found is not None
        return found

    def sample(self) -> dict[str, LimitLine]:
        begin = self.clock()
        self.clock.move(10)
        key = SampleKey(1, "start", 1, begin, self.clock(), "utc")
        return {line.client_id: line for line in limit_lines(cut_clients(self.clients), key)}


def test_line_tells_of_an_interval_and_the_strictest_entry() -> None:
    sampled = Sampled(rule("*", 5000), rule(SINK.format("*"), 1000, per="connector"))
    client = sampled.client(SINK.format(7))
    client.count(batches(300))
    client.rates.throttled(sampled.clock(), sampled.clock() + 2.5)
    next(group for group in client.groups if group.rule.per == "connector").share = 0.25
    line = sampled.sample()[SINK.format(7)]
    assert (line.role, line.connector, line.task) == ("sink", "s3", 7)
    assert (line.entry, line.limit_group, line.record_rate_limit, line.share) == (
        SINK.format("*"),
        "sink:s3",
        1000,
        0.25,
    )
    assert (line.records, line.record_rate_avg, line.record_rate_max) == (300, 30.0, 300)
    assert line.throttled_ratio == 0.25


def test_records_and_waits_are_in_one_interval_each() -> None:
    sampled = Sampled(rule("*"))
    client = sampled.client("mine")
    client.count(batches(10))
    client.rates.waits("it", sampled.clock() + 4)
    first = sampled.sample()["mine"]
    client.rates.waited("it")
    client.count(batches(5))
    second = sampled.sample()["mine"]
    assert [(line.records, line.throttled_ratio) for line in (first, second)] == [(10, 0.6), (5, 0.0)]
    assert (first.connector, first.task, first.role, first.record_rate_limit) == (None, None, "other", None)
    assert sampled.sample() == {}


def test_a_client_without_an_entry_any_more_has_no_line() -> None:
    sampled = Sampled(rule("*", 10))
    client = sampled.client("mine")
    client.count(batches(10))
    cut = cut_clients(sampled.clients)
    sampled.clients.configure([])
    assert list(limit_lines(cut, SampleKey(1, "start", 1, 0.0, 10.0, "utc"))) == []


@pytest.mark.parametrize("idle", [True, False])
def test_an_idle_client_has_no_line(idle: bool) -> None:
    sampled = Sampled(rule("*", 10))
    sampled.client("mine").count(batches(0 if idle else 1))
    assert bool(sampled.sample()) is not idle
