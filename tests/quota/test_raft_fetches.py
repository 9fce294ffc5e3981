# SPDX-License-Identifier: Apache-2.0
"""Fetches of the cluster's metadata log (KRaft): they pass, and are not counted as full fetches."""

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.kafka.wire import replica_fetch, requested_partition
from weir.protocol.request_topics import RequestTopic
from weir.protocol.take_out import Passing
from weir.quota.fetch.decisions import Forward
from weir.quota.throttle import Throttle
from weir.quota.topic_names import CLUSTER_METADATA_ID

METADATA_TOPICS = {12: b"__cluster_metadata", 13: CLUSTER_METADATA_ID, 17: CLUSTER_METADATA_ID}
"""The topic's key by version: a name below v13, an id from there on."""


def full_fetches(version: int, *names: bytes) -> tuple[int, int]:
    """What one full fetch of partition 0 of each topic adds to the counts: received and sent."""
    throttle = Throttle("leader", 1, MovedClock())
    entry = requested_partition(version, 0, 7, 2**20)
    topics = [RequestTopic(name, entry, len(entry)) for name in names]
    decision = throttle.link(2).plan(replica_fetch(version, topics))
    assert isinstance(decision, Forward)
    assert decision.request.topics == topics  # nothing is taken out of it
    return throttle.stats.full_fetches_received, throttle.stats.full_fetches_sent


@pytest.mark.parametrize("version", METADATA_TOPICS)
def test_metadata_log_fetch_asks_for_0_bytes_and_has_records(version: int) -> None:
    """Kafka's Raft client sets no partition_max_bytes. Anybody else who asks for 0 bytes gets none."""
    entry = requested_partition(version, 0, 7, 0)
    for name, passing in ((METADATA_TOPICS[version], {Passing.ALL}), (b"0123456789abcdef", {Passing.NOTHING})):
        request = replica_fetch(version, [RequestTopic(name, entry, len(entry))])
        decision = Throttle("leader", 1, MovedClock()).link(2).plan(request)
        assert isinstance(decision, Forward)
        assert {Passing.ALL if decision.expected.admit is None else decision.expected.admit(name, 0, 1_000)} == passing


@pytest.mark.parametrize("version", METADATA_TOPICS)
def test_a_fetch_of_the_metadata_log_is_no_full_fetch(version: int) -> None:
    assert full_fetches(version, METADATA_TOPICS[version]) == (0, 0)


@pytest.mark.parametrize(("version", "name"), [(12, b"orders"), (17, bytes(range(16)))])
def test_a_fetch_of_any_other_topic_is_a_full_fetch(version: int, name: bytes) -> None:
    assert full_fetches(version, name) == (1, 1)
    assert full_fetches(version, METADATA_TOPICS[version], name) == (1, 1)
