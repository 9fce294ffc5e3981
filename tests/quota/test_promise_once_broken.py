"""Scenarios in which something was broken once, as small as they could be made."""

from tests.quota.model.judge import judge
from tests.quota.model.scenario import MB, Partition, Scenario, Side


def violations(scenario: Scenario) -> list[str]:
    return [str(one) for one in judge(scenario).violations]


def test_promise_of_large_batches_beside_records_in_sync_holds() -> None:
    """What those took was missing from a full credit each time a fetch came: a batch larger than that never went."""
    pattern = (50_000, 51_000, 400_000)
    partitions = [
        Partition(1, 0, 0, 0, 0, True, pattern, 59),
        Partition(1, 1, 0, 0, 0, False, live_every=0.05),
        *[Partition(3, number, 0, 0, 0, True, pattern, 1_197) for number in range(5)],
    ]
    side = Side(800_000, (1,), order="round-robin")
    assert not violations(
        Scenario(18, "leader", side, side, tuple(partitions), latency=0.0001, seconds=15.0, most_exchanges=200)
    )


def test_promise_of_full_fetches_by_an_earlier_hop_holds() -> None:
    """Each of them was a reason for a probe, and what could not wait waited for that to be paid."""
    leader, follower = Side(50_000, (1,), order="round-robin"), Side(5 * MB, (1,), order="round-robin")
    partitions = (
        Partition(1, 0, 0, 0, 0, True, (1_000, 30_000), 10),
        Partition(2, 0, 0, 0, 0, False, live_every=0.2),
    )
    assert not violations(Scenario(10, "both", leader, follower, partitions, most_exchanges=60))


def test_promise_of_partitions_in_step_with_the_next_hop_holds() -> None:
    """That had budget for every other fetch only, and one of two partitions was never in it."""
    leader, follower = Side(MB, (0, 1), order="round-robin"), Side(2 * MB, (0,), order="round-robin")
    partitions = tuple(Partition(topic, number, 0, 0, 0, True, count=4_000) for number in (0, 1) for topic in (0, 1))
    assert not violations(
        Scenario(0, "both", leader, follower, partitions, latency=0.005, seconds=40.0, most_exchanges=90)
    )


def test_promise_of_a_partition_whose_batches_are_not_known_yet_holds() -> None:
    """Its first grant, which had one small batch, counted as much as all that was asked of it."""
    side = Side(5_000, (1,), order="round-robin")
    partitions = tuple(
        Partition(topic, number, 0, 0, 0, True, (1_000,), 2_000) for topic, number in ((1, 0), (1, 1), (0, 0))
    )
    assert not violations(Scenario(4, "leader", side, side, partitions, seconds=15.0, most_exchanges=150))


def test_promise_beside_a_follower_that_begins_anew_with_each_fetch_holds() -> None:
    """It had to be asked each time whether it is in sync, and all of the quota went into the answers."""
    side = Side(1_000, (1,), order="round-robin")
    partitions = (Partition(1, 0, 0, 0, 0, True, (1_000,), 9),)
    assert not violations(
        Scenario(6, "leader", side, side, partitions, rogues=("versions",), seconds=25.0, most_exchanges=150)
    )
