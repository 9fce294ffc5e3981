# SPDX-License-Identifier: Apache-2.0
"""A client's limit, shared by three sidecars over real HTTP. Only the clock is made up."""

from __future__ import annotations

from typing import cast

import pytest

from tests.limits.limiters import batches, rule
from tests.proxy.shares.test_exchange import ALL, Sidecar, Trio, User
from weir.limits.clients import Clients
from weir.limits.rules import Rule
from weir.proxy.limits.shares import IDLE_SECONDS, LEAST_PART, LimitShares

LIMIT, CLIENT = 1000, "connector-consumer-s3-0"
STEP, TICK = 0.02, 12  # seconds; steps between two rounds


class Connection:
    """Whose requests wait."""

    is_idle = False

    def wake(self) -> None:
        """It looks in each step."""


class Limited(Trio):
    """Three sidecars, and a task that reads from the brokers of some at given rates, if it is not held."""

    def __init__(self, *rules: Rule, members: frozenset[int] = ALL) -> None:
        super().__init__()
        self.clients = {one: Clients(self.clock, lambda *fault: None) for one in sorted(ALL)}
        for clients in self.clients.values():
            clients.configure(rules)
        users = {one: LimitShares(clients, lambda: members, self.clock) for one, clients in self.clients.items()}
        self.sidecars = {one: Sidecar(one, self.clock, cast(User, user), self.targets) for one, user in users.items()}
        self.connections = {one: Connection() for one in ALL}
        self.steps = 0
        self.moved: list[tuple[float, int, int]] = []

    async def run(self, seconds: float, *rates: float) -> None:
        """Let time pass; the task would read `rates` records/s from each broker."""
        free = dict.fromkeys(ALL, 0.0)
        for _ in range(round(seconds / STEP)):
            for one, rate in zip(sorted(ALL), rates, strict=True):
                free[one] = min(free[one] + rate * STEP, 10 * rate * STEP)
                client, connection = self.clients[one].of(CLIENT) if rate else None, self.connections[one]
                while client is not None and free[one] >= 20:
                    if any([group.asks(connection, 0) for group in client.groups]):
                        break
                    for group in client.groups:
                        group.leaves(connection)
                    free[one] -= 20
                    client.count(batches(20))
                    self.moved.append((self.clock(), one, 20))
                if not rate:
                    for group in self.clients[one].groups.values():
                        group.leaves(connection)
            if self.steps % TICK == 0:
                for sidecar in self.sidecars.values():
                    await sidecar.round()
            self.steps += 1
            self.clock.move(STEP)

    def rate(self, seconds: float, *of: int) -> float:
        """Records/s of the last seconds, through some sidecars or all."""
        since = self.clock() - seconds
        return sum(records for at, one, records in self.moved if at >= since and one in (of or ALL)) / seconds

    def parts(self) -> list[float]:
        """The part of the limit that each has."""
        parts = []
        for clients in self.clients.values():
            client = clients.of(CLIENT)
            assert client is not None
            parts.append(client.groups[0].share)
        return parts


@pytest.mark.long
@pytest.mark.parametrize(
    ("rates", "parts"),
    [((5000, 0, 0), (1, 0, 0)), ((5000, 5000, 0), (0.5, 0.5, 0)), ((5000, 5000, 100), (0.45, 0.45, 0.1))],
)
async def test_task_moves_its_limit_by_whichever_brokers_have_records(
    rates: tuple[float, ...], parts: tuple[float, ...]
) -> None:
    found = Limited(rule("connector-*", LIMIT))
    async with found.serving():
        await found.run(12, *rates)
        await found.run(20, *rates)
        assert 0.93 * LIMIT <= found.rate(20) <= 1.01 * LIMIT
        assert found.parts() == pytest.approx(list(parts), abs=0.06)
        await found.run(10, *reversed(rates))
        await found.run(20, *reversed(rates))
        assert 0.93 * LIMIT <= found.rate(20) <= 1.01 * LIMIT


async def test_it_begins_with_a_fair_share_and_never_passes_the_limit() -> None:
    """The limit holds whatever changes."""
    found = Limited(rule("connector-*", LIMIT))
    async with found.serving():
        await found.run(0.5, 5000, 0, 0)
        assert found.rate(0.5) == pytest.approx(LIMIT / 3, rel=0.2)
        for rates in ((5000, 0, 0), (0, 5000, 0), (5000, 5000, 5000), (100, 0, 5000)):
            await found.run(8, *rates)
            assert found.rate(2) <= 1.03 * LIMIT


async def test_the_others_of_one_that_is_lost_stay_below_the_limit() -> None:
    found = Limited(rule("connector-*", LIMIT))
    async with found.serving():
        await found.run(10, 2000, 2000, 2000)
        lost = found.sidecars.pop(1)
        found.others[1] = 1  # where nobody listens
        await found.run(12, 0, 2000, 2000)
        assert found.rate(2) <= LIMIT * (1 + 1 / 3)
        assert found.rate(2) >= 0.6 * LIMIT
        found.sidecars[1] = lost


async def test_a_single_sidecar_has_all_and_asks_nobody() -> None:
    found = Limited(rule("connector-*", LIMIT), members=frozenset({1}))
    async with found.serving():
        await found.run(3, 5000, 0, 0)
        assert found.rate(3) == pytest.approx(LIMIT, rel=0.05)
        assert found.sidecars[1].exchange.asked == 0


async def test_unused_limit_is_shared_no_more_until_used_again() -> None:
    found = Limited(rule("connector-*", LIMIT))
    async with found.serving():
        woken: list[int] = []
        found.clients[1].on_group = lambda: woken.append(1)
        await found.run(8, 5000, 0, 0)
        assert all(sidecar.exchange.shares for sidecar in found.sidecars.values())
        found.clock.move(IDLE_SECONDS + 5)
        await found.run(IDLE_SECONDS + 6, 0, 0, 0)
        assert not any(sidecar.exchange.shares for sidecar in found.sidecars.values())
        assert found.parts() == pytest.approx([1 / 3] * 3)
        before = len(woken)
        await found.run(1, 5000, 0, 0)
        assert len(woken) > before


async def test_what_is_no_limit_here_is_not_shared() -> None:
    found = Limited(rule("connector-*", LIMIT))
    shares = LimitShares(found.clients[1], lambda: ALL, found.clock)
    for name in ("rate", "limits", "limits\x00other\x00task\x00a", "limits\x00connector-*\x00connector\x00a"):
        assert not shares.asked_for(name)
    for number in range(2000):
        assert shares.asked_for(f"limits\x00connector-*\x00task\x00{number}")
    assert len(found.clients[1].groups) <= 1000
    last = f"limits\x00connector-*\x00task\x00{1999}"
    shares.use({last: 5e5, "gone": 5.0})
    shares.use({last: 0.0})
    assert [group.share for group in found.clients[1].groups.values()][-1] == LEAST_PART


async def test_limit_of_one_sidecar_is_used_whole_until_others_get_it() -> None:
    limit = rule("connector-*", LIMIT)
    found = Limited(limit)
    for one in (2, 3):
        found.clients[one].configure(())
    async with found.serving():
        await found.run(6, 5000, 0, 0)
        await found.run(4, 5000, 0, 0)
        assert found.rate(4) == pytest.approx(LIMIT, rel=0.05)
        share = next(iter(found.sidecars[1].exchange.shares.values()))
        assert share.without == {2, 3}
        found.clients[2].configure((limit,))
        for _ in range(8):
            await found.run(1, 5000, 5000, 0)
            assert found.rate(1) <= LIMIT * (1 + 1 / 3)
        assert share.without == {3}
        await found.run(4, 5000, 5000, 0)
        assert found.rate(4) == pytest.approx(LIMIT, rel=0.07)
        assert found.rate(4, 1) == pytest.approx(LIMIT / 2, rel=0.1)


async def test_one_that_knows_nobody_is_not_taken_to_lack_the_limit() -> None:
    found = Limited(rule("connector-*", LIMIT))
    lonely = LimitShares(found.clients[2], lambda: frozenset({2}), found.clock)
    found.sidecars[2] = Sidecar(2, found.clock, cast(User, lonely), found.targets)
    async with found.serving():
        await found.run(4, 5000, 0, 0)
        assert found.sidecars[2].exchange.refused["not_shared"] > 0
        share = next(iter(found.sidecars[1].exchange.shares.values()))
        assert share.without == frozenset()


async def test_client_of_one_sidecar_wakes_nobody_with_each_answer() -> None:
    found = Limited(rule("connector-*", LIMIT), members=frozenset({1}))
    async with found.serving():
        woken: list[int] = []
        found.clients[1].on_group = lambda: woken.append(1)
        await found.run(3, 5000, 0, 0)
        assert len(woken) <= 1
