"""What the file and HTTP say of clients' limits together."""

from __future__ import annotations

from typing import Any

from tests.fakes.clock import MovedClock
from weir.proxy.config.client_limits import MOST_RULES, ClientLimitTable, read_client_limits
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
