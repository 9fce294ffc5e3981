# SPDX-License-Identifier: Apache-2.0
"""Lists of throttled replicas, in KIP-73's form and by Kafka's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.quota.throttled_replicas import ALL_REPLICAS, InvalidThrottledReplicas, ThrottledReplicas


def test_partitions_of_broker_with_listed_replicas_are_its_own() -> None:
    """DynamicConfigChangeTest.shouldParseReplicationQuotaProperties."""
    replicas = ThrottledReplicas.parse("0:101,0:102,1:101,1:102")
    assert replicas.partitions_of(102) == frozenset({0, 1})
    assert replicas.partitions_of(103) == frozenset()


def test_partitions_of_a_broker_are_only_those_listed_for_it() -> None:
    """ReplicationQuotaManagerTest.shouldThrottleOnlyDefinedReplicas."""
    replicas = ThrottledReplicas.parse("1:7,2:7,3:7,4:8")
    partitions = [replicas.partitions_of(broker_id) for broker_id in (7, 8, 9)]
    assert partitions == [frozenset({1, 2, 3}), frozenset({4}), frozenset()]


@pytest.mark.parametrize("text", ["*", "* ", " *", "\t*\n", ",*", "*,", " , *"])
def test_parse_star_throttles_every_replica(text: str) -> None:
    """ReplicationQuotaManagerTest.shouldSupportWildcardThrottledReplicas; blank entries count for nothing."""
    replicas = ThrottledReplicas.parse(text)
    assert replicas == ALL_REPLICAS
    assert replicas.partitions_of(1) is None
    assert replicas


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_parse_blank_throttles_nothing(text: str) -> None:
    replicas = ThrottledReplicas.parse(text)
    assert replicas.partitions_of(1) == frozenset()
    assert str(replicas) == ""
    assert not replicas


@pytest.mark.parametrize(
    "text",
    [
        "6:102",
        "6:102 ",
        " 6:102",
        "06:102",
        "00000000000000000006:102",
        "6:102,",
        ",,6:102",
        "6:102,6:102",
        "6:102 , 6:102",
    ],
)
def test_parse_blanks_duplicates_and_zeros_mean_the_same(text: str) -> None:
    """DynamicConfigChangeTest.shouldParseRegardlessOfWhitespaceAroundValues, and more that the validator accepts."""
    assert ThrottledReplicas.parse(text) == ThrottledReplicas.parse("6:102")


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("none", "none"),
        ("0:1,*", "*"),
        ("*,0:1", "*"),
        ("*,*", "*"),
        ("**", "**"),
        ("0-1", "0-1"),  # KIP-73's text spells it so in places; Kafka never accepted it.
        ("0:1,1", "1"),
        ("0:", "0:"),
        (":1", ":1"),
        ("0:1:2", "0:1:2"),
        ("-1:1", "-1:1"),
        ("0: 1", "0: 1"),
        ("0:1;1:2", "0:1;1:2"),
        ("0:1 1:2", "0:1 1:2"),
        ("[0:1", "[0:1"),
        ("0x1:1", "0x1:1"),
        ("١:1", "١:1"),  # noqa: RUF001 -- a digit to Python, not to Kafka
        ("0:1\u00a0", "0:1\u00a0"),  # a blank to Python, not to Kafka
        ("2147483648:1", "2147483648:1"),
        ("0:" + "9" * 5000, "0:" + "9" * 5000),
    ],
)
def test_parse_bad_entry_is_named(text: str, entry: str) -> None:
    with pytest.raises(InvalidThrottledReplicas) as refused:
        ThrottledReplicas.parse(text)
    assert refused.value.entry == entry
    assert str(refused.value).startswith(repr(entry))
    assert str(refused.value).endswith(".")
    assert isinstance(refused.value, ValueError)


def test_parse_star_among_entries_is_told_that_it_stands_alone() -> None:
    with pytest.raises(InvalidThrottledReplicas, match=r"'\*' in a list of throttled replicas must stand alone"):
        ThrottledReplicas.parse("0:1,*")


def test_parse_greatest_ids_are_accepted() -> None:
    assert ThrottledReplicas.parse("2147483647:2147483647").partitions_of(2**31 - 1) == frozenset({2**31 - 1})


def test_str_is_sorted_by_number() -> None:
    assert str(ThrottledReplicas.parse("10:1, 9:2,9:1,9:2")) == "9:1,9:2,10:1"
    assert str(ALL_REPLICAS) == "*"


_IDS = st.integers(0, 2**31 - 1)


@given(st.lists(st.tuples(_IDS, _IDS), max_size=20))
def test_str_parsed_again_is_equal(pairs: list[tuple[int, int]]) -> None:
    replicas = ThrottledReplicas.parse(",".join(f"{partition}:{broker_id}" for partition, broker_id in pairs))
    assert ThrottledReplicas.parse(str(replicas)) == replicas
    assert hash(ThrottledReplicas.parse(str(replicas))) == hash(replicas)
    for partition, broker_id in pairs:
        assert partition in (replicas.partitions_of(broker_id) or ())
