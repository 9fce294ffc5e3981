# SPDX-License-Identifier: Apache-2.0
"""Scenarios with several quotas of a side in which something was broken once, as small as they could be made."""

from tests.quota.model.judge import judge
from tests.quota.model.scenario import MB, Event, Partition, Scenario, Side
from weir.quota.scopes import Matching, Reassigned, Recovering
from weir.quota.settings import QuotaSettings


def violations(scenario: Scenario) -> list[str]:
    return [str(one) for one in judge(scenario).violations]


def side(*quotas: QuotaSettings, rate: int | None = None, topics: tuple[int, ...] = (0, 1)) -> Side:
    return Side(rate, topics, order="round-robin", quotas=quotas)


def test_quota_of_nothing_beside_grants_of_another() -> None:
    """Asked for with 0 bytes beside those, its partition brought a batch each time the next hop left the grants out."""
    leader = side(QuotaSettings("recovery", 150_000, Recovering(spares_under_min_isr=False)))
    follower = side(
        QuotaSettings("scoped", 20 * MB, Matching(topics=("*a",))), QuotaSettings("reassignment", 0, Reassigned())
    )
    partitions = (
        Partition(0, 3, 0, 0, 0, True, (1_000,), 20),
        Partition(1, 1, 0, 0, 0, True, (1_000,), 20),
    )
    for version in (3, 12):
        assert not violations(
            Scenario(version, "both", leader, follower, partitions, adding=((0, 3),), most_exchanges=100)
        )


def test_links_that_begin_beside_grants_of_another_quota() -> None:
    """Each of them asked who is in sync beside such a grant, and not as a probe, of which one goes after the other."""
    follower = side(QuotaSettings("recovery", 5 * MB, Recovering()), rate=900_000)
    partitions = [Partition(0, number, 0, 0, number, True, (900_000,), 1) for number in range(4)]
    partitions += [Partition(2, number, 0, 0, number, False) for number in range(4)]
    adding = tuple((0, number) for number in range(4))
    for version in (4, 12):
        assert not violations(
            Scenario(version, "follower", side(), follower, tuple(partitions), adding=adding, most_exchanges=100)
        )


def test_promise_of_errors_beside_grants_of_another_quota_holds() -> None:
    """What no grant pays for is left out, so an offset probe has to go though grants go on."""
    leader = side(QuotaSettings("recovery", MB, Recovering()), QuotaSettings("reassignment", 0, Reassigned()))
    partitions = (Partition(0, 0, 0, 0, 0, True, count=4_000), Partition(1, 0, 0, 0, 0, True, count=4_000))
    for version in (3, 12):
        scenario = Scenario(
            version,
            "leader",
            leader,
            side(),
            partitions,
            (Event(2.0, "fail", 1),),
            adding=((1, 0),),
            latency=0.1,
            seconds=30.0,
            most_exchanges=1_000,
        )
        assert not violations(scenario)


def test_quota_that_observes_changes_nothing_beside_others() -> None:
    """What it saw of topics that nobody throttles counted as batches that throttled ones may have."""
    observed = QuotaSettings("recovery", 1_800_000, Recovering(), is_observed=True)
    leader = side(observed, rate=5 * MB)
    follower = side(QuotaSettings("reassignment", 1_800_000, Reassigned(spares_under_min_isr=False)), topics=(0,))
    partitions = (
        Partition(0, 1, 0, 0, 0, True, (1_000, 30_000), 80),
        Partition(0, 2, 0, 0, 0, True, (50_000,), 14),
        Partition(3, 0, 0, 0, 0, True, (100_000,), 2_000),
        Partition(3, 2, 0, 0, 0, True, count=20_000),
    )
    adding = ((0, 2), (3, 2))
    assert not violations(Scenario(6, "both", leader, follower, partitions, adding=adding, most_exchanges=80))


def test_partition_beside_one_that_the_next_hop_lets_little_of() -> None:
    """It was never the first of its fetch, as turns go by bytes, though the two belong to different quotas here."""
    leader = side(QuotaSettings("recovery", 20_000, Recovering()), QuotaSettings("reassignment", 10_000, Reassigned()))
    follower = side(QuotaSettings("reassignment", 20 * MB, Reassigned()), rate=5 * MB, topics=(0,))
    partitions = (Partition(0, 1, 0, 0, 0, True, count=62), Partition(1, 1, 0, 0, 0, True, count=7))
    assert not violations(
        Scenario(8, "both", leader, follower, partitions, adding=((1, 1),), seconds=8.0, most_exchanges=60)
    )


def test_partition_beside_a_full_fetch_of_one_with_no_quota() -> None:
    """The next hop held that fetch, which began a session, until an offset probe could go."""
    leader = side(QuotaSettings("recovery", 20_000, Recovering()), QuotaSettings("reassignment", 10_000, Reassigned()))
    follower = side(QuotaSettings("reassignment", 20 * MB, Reassigned()), rate=5 * MB, topics=(0,))
    partitions = (Partition(0, 1, 0, 0, 0, True, count=2_000), Partition(1, 1, 0, 0, 0, True, count=15))
    events = (Event(4.825, "scoped quota", 32, 20 * MB), Event(8.904, "scoped quota", 357, 0))
    assert not violations(
        Scenario(8, "both", leader, follower, partitions, events, adding=((1, 1),), seconds=25.0, most_exchanges=60)
    )


def test_another_quotas_higher_rate_costs_a_partition_no_turns() -> None:
    """Turns were counted at the highest rate of all: what one had at 50 KB/s was as much as many turns at 20 MB/s."""
    recovery = QuotaSettings("recovery", 50_000, Recovering(spares_under_min_isr=False))
    follower = side(recovery, rate=20_000)
    partitions = tuple(Partition(0, number, 0, 0, 0, True, count=4_000) for number in range(2))
    events = (Event(0.4, "scoped quota", 0, 20 * MB, 1),)
    for version in (3, 12):
        assert not violations(
            Scenario(version, "both", side(), follower, partitions, events, adding=((0, 1),), most_exchanges=100)
        )
