# SPDX-License-Identifier: Apache-2.0
"""What the file and HTTP say of clients' limits together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.clock import MovedClock
from weir.proxy.config.client_limits import MOST_RULES, ClientLimitTable, read_client_limits
from weir.proxy.config.reader import ConfigError
from weir.proxy.expiry import Setting
from weir.proxy.limits.layers import LimitLayers


def entries(name: str, count: int) -> list[dict[str, Any]]:
    return [{"client_id": f"{name}-{number}", "byte.rate.limit": 5} for number in range(count)]


def test_lease_ends_although_then_too_many_entries_are_in_force() -> None:
    """Else the limits that should have ended would stay for ever."""
    applied: list[tuple[ClientLimitTable, ...]] = []
    clock = MovedClock()
    limits = LimitLayers(lambda tables: applied.append(tuple(tables)), clock)
    limits.load(read_client_limits(entries("file", 60), "client"))
    limits.replace({"client": entries("leased", 40), "lease": {"seconds": 60}})
    limits.patch({"client": entries("http", 60)})
    assert len(limits.tables) == MOST_RULES
    clock.move(61)
    assert len(limits.expire()) == 1
    assert len(limits.tables) == len(applied[-1]) == 120


def test_limits_taken_over_are_all_that_http_had_set_or_none() -> None:
    clock = MovedClock()
    before, after = (LimitLayers(lambda _: None, clock) for _ in range(2))
    for layers in (before, after):
        layers.load(read_client_limits(entries("file", 2), "client"))
    before.replace({"client": entries("http", 40), "lease": {"seconds": 60}})
    after.take_over(before.handed_over())
    assert (after.tables, after.next_expiry()) == (before.tables, before.next_expiry())
    with pytest.raises(ConfigError):
        after.take_over([Setting(path=("mine", "task"), value={"client_id": "mine", "made.up": 5})])
    assert after.tables == before.tables
