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
    """Each of them was a reason for a question, and what could not wait waited for that to be paid."""
    leader, follower = Side(50_000, (1,), order="round-robin"), Side(5 * MB, (1,), order="round-robin")
    partitions = (
        Partition(1, 0, 0, 0, 0, True, (1_000, 30_000), 10),
        Partition(2, 0, 0, 0, 0, False, live_every=0.2),
    )
    assert not violations(Scenario(10, "both", leader, follower, partitions, most_exchanges=60))
