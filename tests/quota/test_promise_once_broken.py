# SPDX-License-Identifier: Apache-2.0
"""Scenarios in which something was broken once, as small as they could be made."""

import pytest

from tests.quota.model.draw import draw
from tests.quota.model.judge import judge
from tests.quota.model.scenario import MB, Event, Partition, Rogue, Scenario, Seeded, Side
from weir.quota.scopes import Reassigned
from weir.quota.settings import QuotaSettings


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


@pytest.mark.parametrize(("leader_rate", "follower_rate", "latency"), [(MB, 2 * MB, 0.005), (2 * MB, 5 * MB, 0.0005)])
def test_promise_of_partitions_in_step_with_the_next_hop_holds(
    leader_rate: int, follower_rate: int, latency: float
) -> None:
    """That had budget for every other fetch only, and one of two partitions was never in it."""
    leader, follower = Side(leader_rate, (0, 1), order="round-robin"), Side(follower_rate, (0,), order="round-robin")
    partitions = tuple(Partition(topic, number, 0, 0, 0, True, count=4_000) for number in (0, 1) for topic in (0, 1))
    assert not violations(
        Scenario(1, "both", leader, follower, partitions, latency=latency, seconds=40.0, most_exchanges=90)
    )


def test_partition_whose_batches_are_not_known_yet() -> None:
    """Its first grant, which had one small batch, counted as much as all that was asked of it."""
    side = Side(5_000, (1,), order="round-robin")
    partitions = tuple(
        Partition(topic, number, 0, 0, 0, True, (1_000,), 2_000) for topic, number in ((1, 0), (1, 1), (0, 0))
    )
    assert not violations(Scenario(4, "leader", side, side, partitions, seconds=15.0, most_exchanges=150))


def test_follower_that_begins_anew_with_each_fetch() -> None:
    """It had to be asked each time whether it is in sync, and all of the quota went into the answers."""
    side = Side(1_000, (1,), order="round-robin")
    partitions = (Partition(1, 0, 0, 0, 0, True, (1_000,), 9),)
    assert not violations(
        Scenario(6, "leader", side, side, partitions, rogues=("versions",), seconds=25.0, most_exchanges=150)
    )


def test_batch_size_that_is_not_known_beside_a_cap_of_many() -> None:
    """As large a batch was expected as the cap, so the window was passed by for all of it: by many small ones."""
    leader, follower = Side(MB, (0, 1)), Side(5 * MB, (0, 1))
    partitions = (
        Partition(0, 0, 0, 0, 0, True, (1_000,), 1_000),
        Partition(1, 0, 0, 0, 0, True, (1_000,), 1_000),
        Partition(3, 0, 0, 0, 0, True, (1_000,), 10_000),
        Partition(3, 1, 0, 0, 0, True, (1_000,), 20_000),
    )
    events = (Event(0.68, "break"),)
    assert not violations(
        Scenario(12, "both", leader, follower, partitions, events, latency=0.005, seconds=40.0, most_exchanges=80)
    )


def test_promise_of_the_least_cap_of_an_earlier_hop_holds() -> None:
    """One byte was asked for, so one byte was set aside for a batch of 900 KB, and that on two links at once."""
    leader, follower = Side(50_000, (0,), order="round-robin"), Side(5 * MB, (0,), order="round-robin")
    partitions = (
        Partition(0, 4, 0, 2, 0, True, (900_000,), 1),
        Partition(1, 3, 0, 2, 0, True, (900_000,), 1),
        Partition(1, 4, 0, 3, 0, True, (1_000,), 1),
        Partition(0, 9, 0, 3, 0, True, (900_000,), 2),
    )
    assert not violations(
        Scenario(12, "both", leader, follower, partitions, bandwidth=20 * MB, seconds=40.0, most_exchanges=30)
    )


def test_links_whose_batches_grow_at_the_same_offset() -> None:
    """Each had seen two small ones, and several asked at once: all of them brought a large one."""
    side = Side(2 * MB, (0, 1), order="round-robin")
    pattern = (50_000, 51_000, 400_000)
    partitions = tuple(Partition(0, number, number, 0, 0, True, pattern, 11) for number in range(18))
    assert not violations(Scenario(9, "follower", side, side, partitions, seconds=25.0, most_exchanges=150))


def test_partition_beside_one_that_the_next_hop_lets_nothing_of() -> None:
    """Its batches were not known, so each of its grants counted as 1 byte, and thousands of them were in front."""
    leader, follower = Side(0, (0,), order="round-robin"), Side(MB, (0, 1), order="round-robin")
    partitions = (Partition(1, 2, 0, 2, 0, True, (1_000,), 161), Partition(0, 2, 0, 2, 0, True, (1_000,), 1))
    assert not violations(Scenario(7, "both", leader, follower, partitions, seconds=40.0, most_exchanges=50))


def test_partitions_in_step_with_a_slow_next_hop() -> None:
    """That had budget for every third fetch, and the same partition was in it each time."""
    leader, follower = Side(100_000, (0,), order="round-robin"), Side(MB, (0,), order="round-robin")
    partitions = (
        Partition(0, 0, 0, 0, 0, True, (100_000,), 2),
        Partition(0, 1, 0, 0, 0, True, (100_000,), 10),
        Partition(1, 1, 0, 0, 0, False),
    )
    assert not violations(Scenario(9, "both", leader, follower, partitions, seconds=25.0, most_exchanges=50))


def test_many_connections_that_wait_for_large_batches() -> None:
    """Their places in the line were as far apart as the credit that they waited for, and not as a batch."""
    side = Side(20_000, (1,), order="round-robin")
    partitions = (Partition(1, 0, 0, 0, 0, True, count=25),)
    assert not violations(
        Scenario(6, "leader", side, side, partitions, rogues=("many connections",), seconds=40.0, most_exchanges=30)
    )


def test_peer_that_never_reads_what_it_is_granted() -> None:
    """1 MiB was set aside for its batch of an unknown size, and became 52 s of debt when its connection ended."""
    side = Side(20_000, (0,), order="round-robin")
    partitions = (
        Partition(0, 2, 0, 0, 0, True, count=6),
        *[Partition(3, number, 0, 0, 0, True, count=10_000) for number in range(3)],
    )
    assert not violations(
        Scenario(
            5,
            "follower",
            side,
            side,
            partitions,
            rogues=("never reads",),
            bandwidth=20 * MB,
            seconds=25.0,
            most_exchanges=80,
        )
    )


def test_link_that_comes_seldom_beside_large_batches() -> None:
    """One behind it in the line took what it waited for, as a batch that makes debt leaves nothing to those ahead."""
    side = Side(MB, (1,), order="round-robin")
    partitions = (
        Partition(1, 1, 0, 0, 0, True, (900_000,), 2),
        *[Partition(3, number, 0, 0, 0, True, (900_000,), 55) for number in range(5)],
    )
    assert not violations(
        Scenario(
            2,
            "follower",
            side,
            side,
            partitions,
            rogues=("never reads",),
            bandwidth=20 * MB,
            latency=0.005,
            seconds=25.0,
            most_exchanges=50,
        )
    )


def test_partition_behind_the_next_hops_own_grants() -> None:
    """A cap of 1 byte returns a batch in front of all else only, and stayed as it was."""
    leader, follower = Side(20_000, (0,), order="round-robin"), Side(20 * MB, (1,), order="round-robin")
    partitions = (
        Partition(0, 3, 0, 0, 0, True, count=31),
        Partition(1, 1, 0, 0, 0, True, count=1_000),
        *[Partition(3, number, 0, 0, 0, True, count=20_000) for number in range(10)],
    )
    assert not violations(
        Scenario(3, "both", leader, follower, partitions, bandwidth=20 * MB, seconds=40.0, most_exchanges=30)
    )


def test_places_in_the_line_that_nobody_takes_budget_for() -> None:
    """Credit stood at its most and was lost, while those ahead had 1 MiB to reserve and were not the first."""
    side = Side(500_000, (0,), order="round-robin")
    partitions = (Partition(0, 0, 0, 0, 0, True, (100_000,), 50),)
    assert not violations(
        Scenario(9, "leader", side, side, partitions, rogues=("never reads",), seconds=40.0, most_exchanges=80)
    )


def test_partition_whose_first_answer_is_an_error() -> None:
    """It passed from then on, as nobody knew whether it was in sync: all of it at a quota of 0."""
    side = Side(0, (0, 1), order="round-robin")
    partitions = (Partition(0, 0, 0, 0, 0, True, (1_000,), 30),)
    events = (Event(5.56, "fail"), Event(13.126, "break"))
    assert not violations(Scenario(3, "leader", side, side, partitions, events, seconds=40.0, most_exchanges=80))


def test_peer_with_several_fetches_in_flight() -> None:
    """It took the window's room each time that a batch left it, while the link ahead was away with other fetches."""
    side = Side(5 * MB, (0,), order="round-robin")
    partitions = [Partition(0, 0, 0, 0, 0, True, count=500)]
    partitions += [Partition(3, number, 0, 0, 0, True, count=20_000) for number in range(13)]
    rogues: tuple[Rogue, ...] = ("several in flight",)
    assert not violations(
        Scenario(0, "leader", side, side, tuple(partitions), rogues=rogues, seconds=9.0, most_exchanges=60)
    )


def test_partition_beside_one_that_the_next_hop_lets_pass() -> None:
    """That was asked for with 0 bytes, in front of what the next hop granted, and brought its batch each time."""
    leader = Side(100_000, (1,), order="round-robin", one_in=3)
    follower = Side(200_000, (1,), order="round-robin")
    partitions = (
        Partition(1, 0, 0, 0, 0, True, (100_000,), 1),
        Partition(1, 1, 0, 0, 0, True, (100_000,), 25),
    )
    assert not violations(Scenario(3, "both", leader, follower, partitions, seconds=40.0, most_exchanges=50))


def test_quota_beside_what_the_next_hop_lets_pass() -> None:
    """What the next hop did not throttle came in front of what was granted, and beside it, for all of its batches."""
    leader = Side(20 * MB, (0, 1), order="round-robin", one_in=2)
    follower = Side(500_000, (0, 1), order="round-robin")
    partitions = (
        Partition(0, 2, 0, 0, 0, True, (100_000,), 1),
        Partition(0, 4, 0, 0, 0, True, (100_000,), 3),
        Partition(0, 5, 0, 0, 0, True, (100_000,), 25),
        Partition(2, 0, 0, 0, 0, False),
    )
    assert not violations(
        Scenario(3, "both", leader, follower, partitions, bandwidth=500 * MB, seconds=25.0, most_exchanges=30)
    )


def test_large_batch_where_small_ones_in_sync_passed() -> None:
    """As much was reserved as one of those has, while another link brought a large batch of another topic."""
    side = Side(MB, (0, 1), order="round-robin")
    partitions = (
        Partition(0, 0, 0, 0, 0, True, (900_000,), 2),
        Partition(1, 1, 0, 0, 0, True, (900_000,), 1),
        Partition(1, 2, 0, 0, 0, False, live_every=0.2),
        Partition(0, 2, 1, 0, 0, True, (900_000,), 2),
        Partition(1, 4, 1, 0, 0, False, live_every=0.2),
    )
    assert not violations(
        Scenario(7, "follower", side, side, partitions, latency=0.005, seconds=25.0, most_exchanges=80)
    )


def test_mean_beside_a_peer_that_never_reads_its_probes() -> None:
    """Its offset probes had no answer that came whole, so what they brought was charged to nobody."""
    side = Side(200_000, (0,), order="round-robin")
    partitions = (
        Partition(0, 1, 0, 0, 0, True, (900_000,), 1),
        Partition(2, 0, 0, 0, 0, False, live_every=0.5),
    )
    rogues: tuple[Rogue, ...] = ("never reads",)
    assert not violations(Scenario(7, "leader", side, side, partitions, rogues=rogues, seconds=31.0, most_exchanges=80))


def test_quota_beside_what_the_next_hops_session_has_in_front() -> None:
    """Asked for with 0 bytes there, a partition that it does not throttle brought a batch beside the grant."""
    leader = Side(200_000, (0, 1), order="round-robin", one_in=2)
    follower = Side(200_000, (0,), order="round-robin")
    partitions = (
        Partition(0, 0, 0, 0, 0, True, (100_000,), 5),
        Partition(0, 1, 0, 0, 0, True, (100_000,), 5),
        Partition(0, 5, 1, 0, 0, True, (100_000,), 10),
        Partition(1, 1, 1, 0, 0, True, (100_000,), 0),
    )
    assert not violations(
        Scenario(
            13,
            "both",
            leader,
            follower,
            partitions,
            bandwidth=100 * MB,
            latency=0.005,
            seconds=25.0,
            most_exchanges=80,
        )
    )


def test_honest_followers_beside_rogues_lose_nothing() -> None:
    """A partition lost its quota 0.15 s before the end: when its follower asks decides what it has by then."""
    assert not violations(draw(Seeded(810_478), 2))


def test_peer_with_known_batches_that_takes_partitions_whole() -> None:
    """Its 1 MiB counted as one short turn, so it had eight for each of a follower that knew no batches yet."""
    assert not violations(draw(Seeded(709_148), 1))


def test_peer_that_connects_again_and_reads_no_grant() -> None:
    """Nothing counted as sent of a grant whose batches nobody had seen, so the next connection had it at once."""
    assert not violations(draw(Seeded(716_531), 1))


@pytest.mark.parametrize("seed", [845_569, 846_230, 864_149])
def test_fetches_unnamed_for_an_observer_are_not_planned_sooner(seed: int) -> None:
    """The quota that limits knows their topics' names: they were planned anew as if none did, and lost their turn."""
    assert not violations(draw(Seeded(seed), 2))


def test_probe_of_the_only_limit_goes_at_its_time() -> None:
    """With two quotas a probe went before grants though one of the two pays for nothing."""
    assert not violations(draw(Seeded(837_184), 2))


@pytest.mark.long
@pytest.mark.parametrize("seed", [831_340, 1_000_265])
def test_what_passed_before_a_rate_counts_beside_an_observer(seed: int) -> None:
    """Without that quota all that is listed counted as waiting, though nothing held it back."""
    assert not violations(draw(Seeded(seed), 2))


def test_partition_that_a_later_hop_may_have_left_out() -> None:
    """It was asked for with 0 bytes in two fetches running: in the second one it stood in front of the grants."""
    leader, follower = Side(400_000, (1,)), Side(400_000, (0, 1))
    pattern = (50_000, 51_000, 400_000)
    partitions = (
        Partition(0, 2, 0, 0, 0, True, pattern, 3),
        Partition(1, 1, 0, 0, 0, True, (50_000,), 7),
        Partition(0, 3, 0, 0, 0, True, pattern, 239),
        Partition(3, 0, 0, 0, 0, True, pattern, 1_197),
    )
    scenario = Scenario(
        14, "both", leader, follower, partitions, bandwidth=20 * MB, latency=0.005, names_known_after=0.3, seconds=40.0
    )
    assert not violations(scenario)


def test_grant_past_a_hop_that_was_not_told_what_was_left_out() -> None:
    """The leader's session had another partition in front of it still, and its batch came as well."""
    assert not violations(draw(Seeded(1_040_765), 2))


def test_partition_of_two_quotas_beside_others_of_one() -> None:
    """Whenever there was enough of one of the two, partitions of that one alone had it."""
    assert not violations(draw(Seeded(845_534), 2))


@pytest.mark.long
def test_promise_of_links_whose_next_hop_has_no_budget_for_some_grants_holds() -> None:
    """Each grant that brought nothing was taken for a cap below one batch: 0.87 of the quota was used."""
    assert not violations(draw(Seeded(1_600_000_539), 1))


@pytest.mark.parametrize(("bandwidth", "rate"), [(2 * MB, MB), (4 * MB, 2 * MB)])
def test_quota_beside_full_answers_of_seconds_is_used(bandwidth: int, rate: int) -> None:
    """Each second one found no credit, as nobody had wanted any for long, and grants were as small as beside live ones.

    Where an answer took longer than grants are kept in front, they never came in front.
    """
    partitions = [Partition(0, number, 0, 0, 0, True, (100_000,), 400) for number in range(2)]
    partitions += [Partition(3, number, 0, 0, 0, True, (100_000,), 20_000) for number in range(20)]
    side = Side(rate, (0,), order="round-robin")
    assert not violations(
        Scenario(3, "leader", side, side, tuple(partitions), bandwidth=bandwidth, seconds=80.0, most_exchanges=300)
    )


@pytest.mark.parametrize("seed", [1_010_197, 5_002_451])
def test_partition_that_had_much_at_a_higher_rate_waits_one_turn(seed: int) -> None:
    """After the rate had fallen to a part, it waited until others had had as many bytes."""
    assert not violations(draw(Seeded(seed), 2))


def test_partition_below_min_isr_whose_first_cap_was_too_small() -> None:
    """Its next cap was larger, but it came behind all others of the link for as long as those had something to send."""
    assert not violations(draw(Seeded(80_001_556), 1))


def test_quota_that_observes_moves_changes_no_order() -> None:
    """A change of the moves had the partitions ranked anew, half a second early: another one was next."""
    observed = QuotaSettings("reassignment", 0, Reassigned(), is_observed=True)
    follower = Side(100_000, (0,), quotas=(observed,))
    partitions = (
        Partition(0, 2, 0, 0, 1, True, (10_000,), 7),
        Partition(0, 3, 0, 0, 1, True, (100_000,), 3),
    )
    events = (Event(0.285, "reassign", 793, 0, 0),)
    assert not violations(
        Scenario(16, "follower", Side(None, (0,)), follower, partitions, events, latency=0.0005, seconds=8.0)
    )
