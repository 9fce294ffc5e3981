# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from collections.abc import Mapping
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.planning.assignment import Brokers, Partition
from weir.planning.proposals import ImpossibleProposal, propose

Racks = dict[int, str | None]


def topic(*replicas: Brokers, name: str = "orders") -> dict[Partition, Brokers]:
    return {Partition(name, number): brokers for number, brokers in enumerate(replicas)}


def moved(before: Mapping[Partition, Brokers], after: Mapping[Partition, Brokers]) -> int:
    return sum(len(set(after[partition]) - set(before[partition])) for partition in before)


def held(assignment: Mapping[Partition, Brokers], brokers: Racks) -> list[int]:
    counts = Counter(broker for replicas in assignment.values() for broker in replicas)
    return [counts[broker] for broker in brokers]


def racks(*ids: int) -> Racks:
    return dict.fromkeys(ids)


def test_balanced_topic_is_left_as_it_is() -> None:
    current = topic((1, 2), (2, 3), (3, 1))
    assert propose(current, racks(1, 2, 3)) == current


def test_only_replicas_of_brokers_not_named_move() -> None:
    """KIP-73's case of a broker that is to be emptied."""
    current = topic((1, 2), (2, 3), (3, 1))
    proposed = propose(current, racks(1, 2, 4))
    assert proposed == topic((1, 2), (2, 4), (4, 1))


def test_new_broker_gets_its_part_and_old_ones_swap_nothing() -> None:
    current = topic(*[(1, 2), (2, 3), (3, 1)] * 4)
    proposed = propose(current, racks(1, 2, 3, 4))
    assert held(proposed, racks(1, 2, 3, 4)) == [6, 6, 6, 6]
    assert moved(current, proposed) == 6


def test_replica_takes_the_place_of_the_one_that_it_replaces() -> None:
    current = topic((1, 2), (3, 1))
    assert propose(current, racks(2, 3, 4)) == topic((4, 2), (3, 2))


def test_nine_brokers_become_three() -> None:
    """kafka-kit's chunked plans start from this: what is on the three stays, the rest moves once."""
    current = topic(*[tuple(10_000 + (number + at) % 9 for at in range(2)) for number in range(9)])
    three = racks(10_000, 10_001, 10_002)
    proposed = propose(current, three)
    assert held(proposed, three) == [6, 6, 6]
    on_others = sum(broker not in three for replicas in current.values() for broker in replicas)
    assert moved(current, proposed) == on_others


def test_racks_are_all_used_before_one_is_used_twice() -> None:
    brokers: Racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    proposed = propose(topic((1, 2), (1, 2), (2, 1)), brokers)
    for replicas in proposed.values():
        assert len({brokers[broker] for broker in replicas}) == 2


def test_small_rack_takes_what_it_can() -> None:
    """Kafka's rule cannot hold where three replicas have two racks, one of a single broker."""
    brokers: Racks = {1: "a", 2: "b", 3: "b", 4: "b"}
    proposed = propose(topic((2, 3, 4), (2, 3, 4), (2, 3, 4)), brokers)
    assert all(1 in replicas for replicas in proposed.values())
    assert held(proposed, brokers) == [3, 2, 2, 2]


def test_smaller_partition_is_moved_where_either_would_do() -> None:
    current = topic((1,), (1,))
    sizes = {Partition("orders", 0): 1000, Partition("orders", 1): 10}
    assert propose(current, racks(1, 2), sizes) == topic((1,), (2,))


def test_second_topic_goes_where_the_first_has_left_room() -> None:
    current = topic((9,), name="a") | topic((9,), name="b")
    assert propose(current, racks(1, 2)) == topic((1,), name="a") | topic((2,), name="b")


def test_preferred_leaders_are_spread_where_replicas_move() -> None:
    current = topic(*[(9, 8)] * 4)
    proposed = propose(current, racks(1, 2, 3, 4))
    assert sorted(replicas[0] for replicas in proposed.values()) == [1, 2, 3, 4]


def test_too_few_brokers_are_refused() -> None:
    """ReassignPartitionsUnitTest.testGenerateAssignmentFailsWithoutEnoughReplicas."""
    with pytest.raises(ImpossibleProposal, match="orders-0 has 3 replicas, and there are only 2 brokers"):
        propose(topic((0, 1, 2), (1, 2, 3)), racks(0, 1))


def test_racks_of_some_brokers_only_are_refused() -> None:
    """ReassignPartitionsUnitTest.testGenerateAssignmentWithInconsistentRacks."""
    brokers: Racks = {0: "rack0", 1: "rack0", 2: None, 3: "rack1"}
    with pytest.raises(ImpossibleProposal, match=r"\(2 has none\): give --disable-rack-aware"):
        propose(topic((0, 1, 2)), brokers)
    assert propose(topic((0, 1, 2)), dict.fromkeys(brokers)) == topic((0, 1, 2))


def test_fewer_brokers_take_all_replicas() -> None:
    """ReassignPartitionsUnitTest.testGenerateAssignmentWithFewerBrokers."""
    current = topic((0, 1, 2), (1, 2, 3), name="foo") | topic((2, 3, 0), name="bar")
    assert {broker for replicas in propose(current, racks(0, 1, 3)).values() for broker in replicas} == {0, 1, 3}


@st.composite
def clusters(
    draw: st.DrawFn, most_brokers: int = 7, most_partitions: int = 12, with_racks: bool = True
) -> tuple[dict[Partition, Brokers], Racks]:
    """Today's replicas, on brokers 0 to 9, and the brokers that they are to be on."""
    named = draw(st.lists(st.integers(0, 9), min_size=1, max_size=most_brokers, unique=True))
    rack = st.sampled_from(["a", "b", "c"]) if with_racks and draw(st.booleans()) else st.none()
    brokers = {broker: draw(rack) for broker in named}
    factor = st.integers(1, min(len(named), 4))
    replicas = factor.flatmap(lambda count: st.lists(st.integers(0, 9), min_size=count, max_size=count, unique=True))
    topics = draw(st.lists(st.lists(replicas, min_size=1, max_size=most_partitions), min_size=1, max_size=2))
    return {
        Partition(f"t{number}", at): tuple(one)
        for number, partitions in enumerate(topics)
        for at, one in enumerate(partitions)
    }, brokers


@pytest.mark.long
@given(clusters())
def test_no_replica_is_lost_and_racks_are_as_even_as_can_be(
    cluster: tuple[dict[Partition, Brokers], Racks],
) -> None:
    current, brokers = cluster
    proposed = propose(current, brokers)
    assert proposed.keys() == current.keys()
    sizes = Counter(brokers.values())
    for partition, replicas in proposed.items():
        assert len(set(replicas)) == len(replicas) == len(current[partition])
        assert set(replicas) <= brokers.keys()
        used = Counter(brokers[broker] for broker in replicas)
        for full, other in product(sizes, sizes):  # no replica could go to a rack that has two fewer, and has room
            assert used[full] - used[other] <= 1 or used[other] == sizes[other]


@pytest.mark.long
@given(clusters(with_racks=False))
def test_without_racks_each_topic_is_balanced_and_then_stays(
    cluster: tuple[dict[Partition, Brokers], Racks],
) -> None:
    current, brokers = cluster
    proposed = propose(current, brokers)
    for name in {partition.topic for partition in current}:
        counts = held({p: replicas for p, replicas in proposed.items() if p.topic == name}, brokers)
        assert max(counts) - min(counts) <= 1
    assert propose(proposed, brokers) == proposed


def fewest_moves(current: Mapping[Partition, Brokers], brokers: Racks) -> int:
    """Try every balanced assignment there is."""
    choices = [[set(some) for some in combinations(brokers, len(replicas))] for replicas in current.values()]
    before = [set(replicas) for replicas in current.values()]
    least = 10**9
    for choice in product(*choices):
        counts = Counter(broker for replicas in choice for broker in replicas)
        if max(counts[broker] for broker in brokers) - min(counts[broker] for broker in brokers) <= 1:
            least = min(least, sum(len(new - old) for new, old in zip(choice, before, strict=True)))
    return least


@pytest.mark.long
@settings(max_examples=200)
@given(clusters(most_brokers=4, most_partitions=4, with_racks=False))
def test_without_racks_no_balanced_plan_moves_fewer_replicas(
    cluster: tuple[dict[Partition, Brokers], Racks],
) -> None:
    current, brokers = cluster
    for name in {partition.topic for partition in current}:
        one = {partition: replicas for partition, replicas in current.items() if partition.topic == name}
        assert moved(one, propose(one, brokers)) == fewest_moves(one, brokers)
