# SPDX-License-Identifier: Apache-2.0
"""The schedule of a chaos run follows from its seed alone, has no long pause, and sets valid throttles only."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from tests.chaos.faults import BROKER_KINDS, EVERYWHERE, Fault, Kind, draw_rate, schedule
from weir.proxy.config.reader import read_table
from weir.proxy.config.tables import ThrottleTable

SECONDS = 600.0
IDS = (1, 2, 3)


def faults(seed: int = 1, seconds: float = SECONDS) -> tuple[Fault, ...]:
    return schedule(seed, seconds, sidecars=IDS, brokers=IDS)


def test_schedule_is_the_same_for_the_same_seed_and_no_other() -> None:
    assert faults(1) == faults(1)
    assert faults(1) != faults(2)


@pytest.mark.parametrize("seed", range(20))
def test_schedule_of_ten_minutes_has_a_hundred_faults_in_order(seed: int) -> None:
    """An hour's schedule has every kind of fault."""
    found = faults(seed)
    assert 100 <= len(found) <= 150
    assert [fault.at for fault in found] == sorted(fault.at for fault in found)
    assert all(0 < fault.at < SECONDS for fault in found)
    assert {fault.kind for fault in faults(seed, 6 * SECONDS)} == set(Kind)


@pytest.mark.parametrize("seed", range(20))
def test_schedule_hits_allowed_brokers_only_and_one_at_a_time(seed: int) -> None:
    found = schedule(seed, SECONDS, sidecars=IDS, brokers=(2, 3))
    of_brokers = [fault for fault in found if fault.kind in BROKER_KINDS]
    assert {fault.target for fault in of_brokers} <= {2, 3}
    assert all(after.at - before.at >= 40 for before, after in pairwise(of_brokers))


def test_schedule_without_brokers_hits_sidecars_as_often() -> None:
    found = schedule(1, SECONDS, sidecars=IDS, brokers=())
    assert 100 <= len(found) <= 150
    assert not {fault.kind for fault in found} & BROKER_KINDS


def test_schedule_stops_sidecars_for_one_to_eight_seconds() -> None:
    stopped = [fault.seconds for fault in faults(1, 10 * SECONDS) if fault.kind is Kind.STOP_SIDECAR]
    assert min(stopped) >= 1 and max(stopped) <= 8 and max(stopped) - min(stopped) > 5


def test_schedule_hits_every_sidecar_and_all_at_once() -> None:
    assert {fault.target for fault in faults() if fault.kind not in BROKER_KINDS} == {*IDS, EVERYWHERE}


@pytest.mark.parametrize("seed", range(5))
def test_tables_of_a_schedule_are_throttles_that_sidecars_take(seed: int) -> None:
    tables = [fault.table for fault in faults(seed) if fault.kind in {Kind.PUT, Kind.PUT_EVERYWHERE}]
    assert all(read_table(ThrottleTable, table).topics for table in tables)
    lists = [str(sorted(table["topics"].items())) for table in tables]
    assert len(Counter(lists)) > 3


def test_rates_go_from_zero_to_beyond_a_link() -> None:
    random = Random(1)
    rates = [draw_rate(random) for _ in range(2000)]
    assert min(rates) == 0 and max(rates) > 500_000_000
    assert sum(400_000 <= rate <= 50_000_000 for rate in rates) > 1200
