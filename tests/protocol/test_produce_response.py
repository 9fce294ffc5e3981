# SPDX-License-Identifier: Apache-2.0
"""The throttle time of Produce responses, read and written by kafka-python on the other side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from tests.proxy.limited import produced, read_produced
from weir.protocol.produce_response import with_throttle_time

Partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
texts = st.none() | st.text(max_size=200)


@pytest.mark.long
@given(
    version=st.integers(5, 13),
    partitions=st.integers(0, 5),
    errors=st.lists(
        st.builds(Partition.BatchIndexAndErrorMessage, batch_index=st.integers(0, 9), batch_index_error_message=texts),
        max_size=3,
    ),
    message=texts,
    leader=st.none()
    | st.builds(Partition.LeaderIdAndEpoch, leader_id=st.integers(0, 9), leader_epoch=st.integers(0, 9)),
    wanted=st.integers(1, 2**31 - 1),
)
def test_only_the_throttle_time_changes(
    version: int, partitions: int, errors: object, message: str | None, leader: object, wanted: int
) -> None:
    answer = produced(3, version, partitions, record_errors=errors, error_message=message, current_leader=leader)
    changed = with_throttle_time(answer, version, wanted)
    theirs = read_produced(changed, version)
    assert theirs.throttle_time_ms == wanted
    theirs.throttle_time_ms = 0
    assert theirs == read_produced(answer, version)
    assert with_throttle_time(changed, version, wanted - 1) == changed


@given(version=st.integers(-1, 15), data=st.binary(max_size=200))
def test_what_cannot_be_read_keeps_its_length(version: int, data: bytes) -> None:
    assert len(with_throttle_time(data, version, 5)) == len(data)


@pytest.mark.parametrize("version", [5, 8, 9, 13])
def test_an_answer_that_is_cut_off_stays(version: int) -> None:
    answer = produced(3, version)
    for size in range(len(answer) - 5):
        assert with_throttle_time(answer[:size], version, 5) == answer[:size]
