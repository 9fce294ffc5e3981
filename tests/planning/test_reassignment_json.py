# SPDX-License-Identifier: Apache-2.0
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.planning.assignment import Partition, Replica
from weir.planning.reassignment_json import (
    InvalidPlan,
    format_reassignment,
    parse_brokers,
    parse_reassignment,
    parse_topics,
)


def entry(topic: str = "foo", partition: object = 0, replicas: object = (0, 1), **more: object) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "replicas": replicas, **more}


def plan(*entries: object) -> str:
    return json.dumps({"version": 1, "partitions": entries})


def test_reassignment_is_written_as_kafkas_tool_writes_it() -> None:
    """ReassignPartitionsUnitTest.testCurrentPartitionReplicaAssignmentToString."""
    brokers = {Partition("foo", 1): (4, 5, 6), Partition("bar", 0): (7, 8)}
    assert format_reassignment(brokers) == (
        '{"version":1,"partitions":[{"topic":"bar","partition":0,"replicas":[7,8],"log_dirs":["any","any"]},'
        '{"topic":"foo","partition":1,"replicas":[4,5,6],"log_dirs":["any","any","any"]}]}'
    )


def test_log_directories_are_read_and_written() -> None:
    text = plan(entry(replicas=[1, 2, 3], log_dirs=["/tmp/a", "any", "/tmp/ü"]))  # noqa: S108 - never opened
    read = parse_reassignment(text)
    assert read.brokers == {Partition("foo", 0): (1, 2, 3)}
    assert read.log_dirs == {Replica("foo", 0, 1): "/tmp/a", Replica("foo", 0, 3): "/tmp/ü"}  # noqa: S108
    assert json.loads(format_reassignment(read.brokers, read.log_dirs)) == json.loads(text)
    assert "ü" in format_reassignment(read.brokers, read.log_dirs)  # as Jackson does: not escaped


def test_version_and_log_directories_may_be_left_out() -> None:
    read = parse_reassignment('{"partitions": [{"topic": "foo", "partition": 1, "replicas": [3, 1]}]}')
    assert read.brokers == {Partition("foo", 1): (3, 1)}
    assert read.topics == ("foo",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{\n  "version": 1,\n  "partitions": [,]\n}', "line 3, column 18: this is no JSON: expecting value"),
        ("{invalid_json", "line 1, column 2: this is no JSON: expecting property name enclosed in double quotes"),
        ("", "line 1, column 1: this is no JSON: expecting value"),
        ("[" * 100_000, "this is no plan: its JSON is nested too deeply"),
        ("[]", "this is no plan: an object with partitions is expected"),
        ('{"version": 2, "partitions": []}', "version: 2 is not known: 1 is the only version"),
        ('{"version": true, "partitions": []}', "version: True is not known: 1 is the only version"),
        (plan(), "partitions: the plan moves no partition"),
        ('{"partitions": 3}', "partitions: a list is expected"),
        (plan(7), "partitions[0]: an object is expected"),
        (plan({"topic": "foo", "partition": 0}), "partitions[0]: replicas is missing"),
        (plan(entry(topic="")), "partitions[0].topic: a text is expected"),
        (
            plan(entry(partition="0")),
            "partitions[0].partition: '0' is no id: a number from 0 to 2147483647 is expected",
        ),
        (
            plan(entry(replicas=[0, -1])),
            "partitions[0].replicas: -1 is no id: a number from 0 to 2147483647 is expected",
        ),
        (plan(entry(), entry(replicas=[2, 3])), "partitions[1]: foo-0 stands in the plan twice"),
        (plan(entry(replicas=[])), "partitions[0].replicas: foo-0 would have no replica"),
        (plan(entry(replicas=[0, 0])), "partitions[0].replicas: foo-0 has two replicas on one broker: 0"),
        (plan(entry(log_dirs=["any"])), "partitions[0].log_dirs: foo-0 has 2 replicas, but 1 log directories"),
    ],
)
def test_text_that_is_no_plan_is_refused_with_the_place(text: str, sentence: str) -> None:
    """ReassignPartitionsUnitTest.testParseExecuteAssignmentArgs, testPropagateInvalidJsonError."""
    with pytest.raises(InvalidPlan) as refused:
        parse_reassignment(text)
    assert str(refused.value) == sentence


def test_topics_are_read() -> None:
    assert parse_topics('{"topics": [{"topic": "foo"}, {"topic": "bar"}], "version": 1}') == ("foo", "bar")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"topics": [{"topic": "foo"}, {"topic": "foo"}]}', "topics: a topic is named twice: foo"),
        ('{"topics": []}', "topics: no topic is named"),
        ('{"topics": [{}]}', "topics[0]: topic is missing"),
    ],
)
def test_topics_that_cannot_be_moved_are_refused(text: str, sentence: str) -> None:
    """ReassignPartitionsUnitTest.testParseGenerateAssignmentArgs."""
    with pytest.raises(InvalidPlan) as refused:
        parse_topics(text)
    assert str(refused.value) == sentence


def test_broker_list_is_read_in_its_order() -> None:
    assert parse_brokers("5,2, 3,4") == (5, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,1,2", "a broker is named twice: 1"),
        ("5,2,3,4,5", "a broker is named twice: 5"),
        ("1,x", "'x' is no broker id: give ids as in 1,2,3"),
        ("", "'' is no broker id: give ids as in 1,2,3"),
        ("3000000000", "'3000000000' is no broker id: give ids as in 1,2,3"),
    ],
)
def test_broker_lists_that_name_no_brokers_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        parse_brokers(text)
    assert str(refused.value) == sentence


IDS = st.integers(0, 2**31 - 1)


@pytest.mark.long
@given(
    st.dictionaries(
        st.builds(Partition, st.text(min_size=1), IDS),
        st.lists(IDS, min_size=1, max_size=4, unique=True).map(tuple),
        min_size=1,
    )
)
def test_what_is_written_is_read_back(brokers: dict[Partition, tuple[int, ...]]) -> None:
    assert parse_reassignment(format_reassignment(brokers)).brokers == brokers


@pytest.mark.long
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidPlan):
        parse_reassignment(text)
