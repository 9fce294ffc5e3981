# SPDX-License-Identifier: Apache-2.0
"""What was broken once is put back, a defect at a time: the model has to find each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import pytest

from tests.quota.model import hops
from tests.quota.model.judge import judge
from tests.quota.model.rogues import ROGUE_ID
from tests.quota.model.scenario import MB, Event, Partition, Scenario, Side
from weir.quota.budget.ledger import Account, LinkAccounts, StrictLedger
from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.quota import Quota
from weir.quota.fetch import order, plan, request_parts
from weir.quota.fetch.order import GrantQueue
from weir.quota.fetch.partitions import LinkPartitions
from weir.quota.fetch.settlement import Settlement
from weir.quota.fetch.state import UNKNOWN_OFFSET, ReplicaPartition
from weir.quota.scopes import Matching, Reassigned, Recovering
from weir.quota.settings import QuotaSettings
from weir.quota.side_quotas import SideQuotas
from weir.quota.throttled_replicas import ThrottledReplicas

pytestmark = pytest.mark.long

Patch = pytest.MonkeyPatch


def place_lost_by_each_return(patch: Patch) -> None:
    """A partition that an earlier hop leaves out now and then stands behind all others when it returns."""

    enter, returned = GrantQueue.enter, set[ReplicaPartition]()

    def noted(queue: GrantQueue, replica: ReplicaPartition) -> None:
        if replica in queue.turns and replica not in queue.waiting:
            returned.add(replica)
        enter(queue, replica)

    def always_there_first(queue: GrantQueue) -> Iterator[ReplicaPartition]:
        return iter(sorted(queue.waiting, key=returned.__contains__))

    patch.setattr(GrantQueue, "enter", noted)
    patch.setattr(GrantQueue, "__iter__", always_there_first)
    patch.setattr(GrantQueue, "by_rank", iter)


def grants_always_last(patch: Patch) -> None:
    """Grants stay behind unthrottled partitions, even where those fill every answer."""
    note = Settlement._note_barren

    def miss(settlement: Settlement) -> None:
        note(settlement)
        settlement._state.crowded_until = -math.inf

    patch.setattr(Settlement, "_note_barren", miss)


def reservations_that_leak(patch: Patch) -> None:
    """An exception between a reservation and its fetch keeps it for good."""
    leave_out = LinkPartitions.leave_out

    def fail(link: LinkPartitions, granted: Sequence[ReplicaPartition] = ()) -> None:
        if link.replica_id == ROGUE_ID and granted:
            raise KeyError
        leave_out(link, granted)

    patch.setattr(LinkPartitions, "leave_out", fail)
    patch.setattr(Account, "close", lambda self: None)
    patch.setattr(StrictLedger, "recount", lambda self, reserved: None)


def cap_bounded_by_an_estimate(patch: Patch) -> None:
    """A cap that brought nothing is not doubled beyond what is thought to be left."""

    def estimate(one: ReplicaPartition) -> int:
        return int(min(one.max_bytes, order.bytes_to_go(one)))

    patch.setattr(order, "worth_asking", estimate)
    patch.setattr(plan, "worth_asking", estimate)
    grants_always_last(patch)


def empty_answers_filled(patch: Patch) -> None:
    """What is made up is appended to an empty answer, too."""
    patch.setattr(hops, "stays_empty", lambda response, head: False)


def claims_that_last(patch: Patch) -> None:
    """A place in the line is kept, and keeps others, for as long as a peer says."""
    wait = BudgetQueue.wait

    def long(turns: BudgetQueue, link: object, size: float, until: float, **more: object) -> None:
        wait(turns, link, size, until + 2_000_000, **more)  # type: ignore[arg-type]

    patch.setattr(BudgetQueue, "wait", long)


def in_sync_lately_however_far_back(patch: Patch) -> None:
    """A replica that was in sync may go back to any offset."""

    def go_back(one: ReplicaPartition, fetch_offset: int, in_sync_until: float, *, truncates: bool) -> None:
        if one.has_caught_up:
            one.in_sync_until = in_sync_until
        one.high_watermark = UNKNOWN_OFFSET
        one.batches.arrived = 0

    patch.setattr(ReplicaPartition, "go_back", go_back)
    patch.setattr(ReplicaPartition, "forget_sync", lambda one: None)


def limits_not_kept(patch: Patch) -> None:
    """An answer may be as large as the follower says."""
    patch.setattr(request_parts, "limit_response", lambda request, limit, number: request)


def lists_of_other_brokers(patch: Patch) -> None:
    """What other brokers throttle is throttled here as well."""
    patch.setattr(
        ThrottledReplicas,
        "partitions_of",
        lambda self, broker: self.by_broker and frozenset(chain.from_iterable(self.by_broker.values())),
    )


def one_quota_of_several(patch: Patch) -> None:
    """A grant is paid for by the first quota that its partition belongs to, and by no other."""
    purses_of = order._purses_of
    patch.setattr(order, "_purses_of", lambda replica, purses: purses_of(replica, purses)[:1])


def quotas_that_only_seem_to_observe(patch: Patch) -> None:
    """A quota in mode `observe` holds back as any other."""
    patch.setattr(Quota, "limits", property(lambda quota: quota.rate is not None))


def facts_that_go_unnoticed(patch: Patch) -> None:
    """What a reassignment adds, or what falls below its min ISR, is classified once and for all."""
    patch.setattr(SideQuotas, "_facts_changed", lambda self: None)


def reservations_until_asked_again(patch: Patch) -> None:
    """What is granted to a slow follower stays reserved until it asks again."""
    patch.setattr(LinkAccounts, "let_arrive", lambda self, most, due=0: None)
    patch.setattr(LinkAccounts, "arrive", lambda self, size: None)


def credit_not_given_back(patch: Patch) -> None:
    """What is held back takes nothing of the window, but its credit is gone."""
    book = Account._book

    def keep(account: Account, sent: int = 0, due: float = 0) -> None:
        before = account.held_back
        book(account, sent, due)
        account._ledger._credit -= max(0, account.held_back - before)

    patch.setattr(Account, "_book", keep)


def turns_of_the_follower(patch: Patch) -> None:
    """On the follower's side all links take turns as one: a small share is a turn, and so is a large batch."""
    patch.setattr(LinkPartitions, "other_id", LinkPartitions.replica_id)


def begun_and_held_back(patch: Patch) -> None:
    """What has begun is held back though its quota has become 0: no frame can be cut, so what is behind it waits."""

    def room(accounts: LinkAccounts) -> float:
        held = [ledger for ledger, account in accounts._accounts.items() if account.held_back]
        return min([max(0, int(ledger.room_for_due())) for ledger in held], default=math.inf)

    patch.setattr(LinkAccounts, "room", room)


def link(version: int, hop: str, leader: Side, follower: Side, *partitions: Partition, **more: object) -> Scenario:
    return replace(
        Scenario(version, hop, leader, follower, partitions),  # type: ignore[arg-type]
        **{"seconds": 15.0, "most_exchanges": 300, **more},  # type: ignore[arg-type]
    )


T = Partition(0, 0, 0, 0, 0, True, count=4_000)
U = Partition(1, 0, 0, 0, 0, True, count=4_000)
REST = Partition(2, 0, 0, 0, 0, False)


def side(rate: int, *topics: int) -> Side:
    return Side(rate, topics, order="round-robin")


RECOVERY = QuotaSettings("recovery", MB, Recovering())
LISTED = Side(0, (0,), order="round-robin", one_in=2)
LIMITED = replace(side(5 * MB, 0), response_max_bytes=100_000)
SEVERAL = replace(side(5 * MB, 0, 1), quotas=(QuotaSettings("topics", 5 * MB, Matching(topics=("*",))), RECOVERY))
OBSERVED = replace(side(5 * MB, 0), quotas=(replace(RECOVERY, is_observed=True),))
ADDED = Side(None, (), order="round-robin", quotas=(QuotaSettings("reassignment", MB, Reassigned()),))
LARGE = replace(T, pattern=(900_000,), count=200)
OTHERS = [replace(T, number=number) for number in (1, 2)]
BACKLOG = [Partition(3, number, 0, 0, 0, True, count=20_000) for number in range(30)]
HONEST = replace(T, pattern=(100_000,), count=400)

UNLIKE = [replace(T, number=0), *[replace(LARGE, number=number, leader=number // 2) for number in (1, 2, 3)]]
BEHIND_IT = replace(REST, live_every=0.5)
MANY = [replace(T, number=number, follower=number % 3) for number in range(12)]
SLOW: dict[str, object] = {"slow": (50_000, 20_000, 0), "seconds": 30.0, "most_exchanges": 2_000}
DEFECTS: dict[str, tuple[Callable[[Patch], None], Scenario]] = {
    "3": (place_lost_by_each_return, link(3, "both", side(2 * MB, 0, 1), side(MB, 0), T, U, seconds=40.0)),
    "4": (grants_always_last, link(3, "leader", side(5 * MB, 0), side(MB), T, *BACKLOG)),
    "5": (reservations_that_leak, link(4, "leader", side(5 * MB, 0), side(MB), HONEST, *OTHERS, rogues=("twice",))),
    "6": (
        cap_bounded_by_an_estimate,
        link(5, "leader", side(MB, 0), side(MB), replace(T, pattern=(1_000,), count=50, last=(900_000,)), *BACKLOG[:6]),
    ),
    "8": (empty_answers_filled, link(3, "both", side(100_000, 1), side(100_000, 0), T, U)),
    "15": (claims_that_last, link(4, "leader", side(MB, 0), side(MB), LARGE, REST, rogues=("long wait",))),
    "16": (
        in_sync_lately_however_far_back,
        link(4, "leader", side(MB, 0), side(MB), HONEST, rogues=("high watermark",)),
    ),
    "one of several": (one_quota_of_several, link(12, "leader", SEVERAL, side(MB), T, U)),
    "observed": (quotas_that_only_seem_to_observe, link(5, "leader", OBSERVED, side(MB), T, U)),
    "facts": (
        facts_that_go_unnoticed,
        link(5, "leader", ADDED, side(MB), T, U, events=(Event(0.1, "reassign", 0),)),
    ),
    "limits": (limits_not_kept, link(5, "leader", LIMITED, side(MB), T, *BACKLOG[:2])),
    "slow": (reservations_until_asked_again, link(12, "leader", side(MB, 0), side(MB), *MANY, **SLOW)),
    "credit": (credit_not_given_back, link(12, "leader", side(MB, 0), side(MB), *MANY, **SLOW)),
    "turns": (
        turns_of_the_follower,
        link(3, "follower", side(MB), side(300_000, 0), *UNLIKE, seconds=60.0, most_exchanges=2_000),
    ),
    "begun": (
        begun_and_held_back,
        link(9, "leader", side(5 * MB, 0), side(MB), T, BEHIND_IT, events=(Event(3.0, "quota", value=0),), **SLOW),
    ),
    "lists": (lists_of_other_brokers, link(5, "leader", LISTED, side(MB), *OTHERS)),
}
"""By the number of the defect, or what it is of."""


@pytest.mark.parametrize("number", DEFECTS)
def test_promise_with_a_defect_is_broken(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back, scenario = DEFECTS[number]
    assert not judge(scenario).violations
    put_back(monkeypatch)
    assert judge(scenario).violations
