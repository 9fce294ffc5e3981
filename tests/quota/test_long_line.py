# SPDX-License-Identifier: Apache-2.0
"""What a link costs that waits far back in a long line: it is asked for little, and often."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from tests.fakes.lines import line_of
from weir.quota.budget.ledger import StrictLedger
from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.quota import Ask
from weir.quota.budget.simple_rate import SimpleRate
from weir.quota.budget.strict import StrictQuota
from weir.quota.fetch import plan as plan_module
from weir.quota.fetch.decisions import Hold
from weir.quota.figures import CREDIT_SECONDS
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

MB = 1_000_000


class TickingClock(MovedClock):
    """A clock that goes on a little with each reading, as a real one does."""

    def __call__(self) -> float:
        self.move(1e-6)
        return self.now


def three_in_line() -> list[Conversation]:
    """Three followers in line for one quota, each with a fetch that waits."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}))
    logs = {(b"t", 0): Log([10_000] * 6000)}
    talks = [
        Conversation(clock, throttle.link(number), Leader(logs), Follower({(b"t", 0): 0}, replica_id=number))
        for number in (2, 3, 4)
    ]
    for talk in talks:
        talk.exchange()  # its high watermark and its batches are known then
    for talk in talks:
        talk.link.plan(talk.follower.request())
    return talks


def hold_at(talk: Conversation) -> Hold:
    decision = talk.link.plan(talk.follower.request())
    assert isinstance(decision, Hold)
    return decision


def test_link_far_back_keeps_its_claim_without_a_new_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A choice of grants looks at every partition."""
    *_, last = three_in_line()
    claim = line_of(last.link.throttle).claims[last.link]
    claimed = claim.size, claim.share
    monkeypatch.setattr(plan_module, "fill", None)  # choosing grants looks at every partition
    hold_at(last)
    claim = line_of(last.link.throttle).claims[last.link]
    assert (claim.size, claim.share) == claimed


def test_first_in_line_is_not_put_off_by_a_clock_that_goes_on() -> None:
    """The clock goes on while it is planned."""
    clock = TickingClock()
    ledger, line = StrictLedger(clock, MB), BudgetQueue(clock)
    quota = StrictQuota("q", ledger, SimpleRate(clock), line)
    line.wait("first", 10_000, clock.now + 1, broker=2)
    line.wait("second", 10_000, clock.now + 1, broker=2)
    clock.move(CREDIT_SECONDS)
    for link, ahead in (("first", 0), ("second", 10_000)):
        now = clock()
        offer = quota.offer(Ask(link, 2, 10_000, False, False, 0.0), now)
        assert offer.ahead == ahead
        assert offer.ready <= now
