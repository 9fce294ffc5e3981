# SPDX-License-Identifier: Apache-2.0
"""What is known of topic ids, and which are asked for."""

from __future__ import annotations

import math

import pytest

from tests.fakes.clock import MovedClock
from weir.protocol.metadata import NO_ID
from weir.quota.topic_names import (
    CLUSTER_METADATA_ID,
    FIRST_RETRY_SECONDS,
    FORGET_SECONDS,
    MAX_RETRY_SECONDS,
    TopicNames,
)

ORDERS, ORDERS_AGAIN, PAYMENTS = (bytes([number]) * 16 for number in (1, 2, 3))


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock(0.0)


@pytest.fixture
def names(clock: MovedClock) -> TopicNames:
    return TopicNames(clock)


def test_name_learned_is_known(names: TopicNames) -> None:
    names.learn({ORDERS: b"orders"})
    assert names.name_of(ORDERS) == b"orders"
    assert names.wanted() == []


def test_name_looked_up_in_vain_is_wanted_until_it_is_learned(names: TopicNames) -> None:
    misses: list[bytes] = []
    names.on_miss = lambda: misses.extend(names.wanted())
    assert names.name_of(ORDERS) is None
    assert names.name_of(ORDERS) is None
    assert names.name_of(PAYMENTS) is None
    assert misses == [ORDERS, ORDERS, PAYMENTS]  # one call for each id: what is wanted at the first, at the second
    assert names.wanted() == [ORDERS, PAYMENTS]
    assert names.unknown_count == 2
    names.learn({ORDERS: b"orders"})
    assert names.wanted() == [PAYMENTS]
    assert names.unknown_count == 1


def test_generation_grows_only_with_what_is_new(names: TopicNames) -> None:
    generation = names.generation
    names.learn({ORDERS: b"orders"})
    assert names.generation > generation
    generation = names.generation
    names.learn({ORDERS: b"orders"})
    names.learn({})
    names.name_of(PAYMENTS)
    names.unknown([PAYMENTS])
    assert names.generation == generation


def test_topic_created_again_has_its_name_under_both_ids(names: TopicNames) -> None:
    """Fetches of the deleted one may be under way."""
    names.learn({ORDERS: b"orders"})
    names.learn({ORDERS_AGAIN: b"orders"})
    assert names.name_of(ORDERS_AGAIN) == b"orders"
    assert names.name_of(ORDERS) == b"orders"


@pytest.mark.parametrize("topic_id", [NO_ID, CLUSTER_METADATA_ID])
def test_no_id_and_the_metadata_log_are_never_wanted_or_named(names: TopicNames, topic_id: bytes) -> None:
    names.learn({topic_id: b"orders"})
    assert names.generation == 0
    assert names.name_of(topic_id) is None
    assert names.wanted() == []
    assert names.unknown_count == 0


def test_unknown_id_is_wanted_again_later_and_later(names: TopicNames, clock: MovedClock) -> None:
    names.name_of(ORDERS)
    waits = []
    for _ in range(10):
        names.name_of(ORDERS)
        names.unknown([ORDERS])
        assert names.unknown_count == 1
        wanted_at = names.next_wanted_at()
        waits.append(wanted_at - clock.now)
        clock.now = wanted_at - 0.001
        assert names.wanted() == []
        clock.now = wanted_at
        assert names.wanted() == [ORDERS]
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, MAX_RETRY_SECONDS]


def test_id_that_is_wanted_first_tells_when_to_ask_next(names: TopicNames, clock: MovedClock) -> None:
    assert names.next_wanted_at() == math.inf
    names.name_of(ORDERS)
    names.unknown([ORDERS])
    names.unknown([ORDERS])
    names.name_of(PAYMENTS)
    assert names.next_wanted_at() == clock.now
    names.unknown([PAYMENTS])
    assert names.next_wanted_at() == clock.now + FIRST_RETRY_SECONDS
    names.learn({ORDERS: b"orders", PAYMENTS: b"payments"})
    assert names.next_wanted_at() == math.inf


def test_unknown_id_named_or_not_looked_up_changes_nothing(names: TopicNames) -> None:
    """A broker says that it does not know an id which has a name, or which nobody looked up."""
    names.learn({ORDERS: b"orders"})
    names.unknown([ORDERS, PAYMENTS])
    assert names.name_of(ORDERS) == b"orders"
    assert names.name_of(PAYMENTS) is None
    assert names.wanted() == [PAYMENTS]


def test_unknown_id_that_nobody_looks_up_any_more_is_forgotten(names: TopicNames, clock: MovedClock) -> None:
    names.name_of(ORDERS)
    names.name_of(PAYMENTS)
    clock.now += FORGET_SECONDS / 2
    names.name_of(ORDERS)
    clock.now += FORGET_SECONDS / 2
    assert names.wanted() == [ORDERS]
    assert names.unknown_count == 1
    assert names.name_of(PAYMENTS) is None
    assert names.wanted() == [ORDERS, PAYMENTS]


def test_more_names_than_kept_drop_the_least_recent(clock: MovedClock) -> None:
    """Dropped is the one that was not looked up for longest."""
    names = TopicNames(clock, max_ids=2)
    names.learn({ORDERS: b"orders", PAYMENTS: b"payments"})
    names.name_of(ORDERS)
    names.learn({ORDERS_AGAIN: b"orders"})
    assert names.name_of(ORDERS) == b"orders"
    assert names.name_of(ORDERS_AGAIN) == b"orders"
    assert names.name_of(PAYMENTS) is None


def test_names_that_answers_show_again_and_again_are_kept(clock: MovedClock) -> None:
    """A throttled topic is asked for by name at each poll."""
    names = TopicNames(clock, max_ids=2)
    names.learn({ORDERS: b"orders"})
    names.learn({ORDERS_AGAIN: b"orders"})
    names.learn({ORDERS: b"orders"})
    names.learn({PAYMENTS: b"payments"})
    assert names.name_of(ORDERS) == b"orders"
    assert names.name_of(ORDERS_AGAIN) is None


def test_more_unknown_ids_than_kept_drop_the_least_recent(clock: MovedClock) -> None:
    """Dropped is the one that was not looked up for longest."""
    names = TopicNames(clock, max_ids=2)
    for topic_id in (ORDERS, PAYMENTS, ORDERS, ORDERS_AGAIN):
        names.name_of(topic_id)
    assert names.wanted() == [ORDERS, ORDERS_AGAIN]
