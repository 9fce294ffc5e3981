# SPDX-License-Identifier: Apache-2.0
"""Plans for requests of several layouts: what a plan may alter of them, and what it makes up."""

from itertools import permutations

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import PARTITION_MAX_BYTES, Conversation, Follower, Leader, Log, mean_rate
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_response import ResponseTopic, encode_response_topics, made_up_entries
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.quota.fetch.decisions import Forward
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS

BATCH = 100_000
MB = 1_000_000
VERSIONS = [3, 4, 5, 6]


def conversation(version: int, rate: int) -> Conversation:
    """Topic t: three partitions behind and one in sync; topic u, not throttled."""
    clock = MovedClock()
    throttle = Throttle("leader", 1, clock, ThrottleSettings(rate=rate, replicas={"t": ALL_REPLICAS}))
    logs = {(b"t", partition): Log([BATCH] * 1000) for partition in range(4)}
    offsets = {(b"t", partition): 0 if partition < 3 else 1000 for partition in range(4)}
    leader = Leader({**logs, (b"u", 0): Log([BATCH])})
    return Conversation(clock, throttle.link(2), leader, Follower({**offsets, (b"u", 0): 1}, version=version))


def entries(request: FetchRequest) -> dict[tuple[bytes, int], dict[str, int]]:
    """Every field of each partition, by topic and partition."""
    fields = FETCH_VERSIONS[request.header.api_version].request_partition
    return {
        (name, values[0]): dict(zip(fields.names, values, strict=True))
        for name, block, _, _ in request.topics
        for values in fields.layout.iter_unpack(block)
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rate", [0, 5 * MB])
def test_plan_alters_nothing_of_a_partition_but_its_max_bytes(version: int, rate: int) -> None:
    talk = conversation(version, rate)
    caps = set[int]()
    for _ in range(40):
        expected = entries(talk.follower.request())
        decision = talk.exchange()
        if isinstance(decision, Forward):
            for key, fields in entries(decision.request).items():
                caps.add(fields["partition_max_bytes"])
                assert {**fields, "partition_max_bytes": PARTITION_MAX_BYTES} == expected[key]
    assert {0, PARTITION_MAX_BYTES} < caps if rate else caps == {0, PARTITION_MAX_BYTES}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_left_out_is_made_up_in_the_requests_version(version: int) -> None:
    talk = conversation(version, 0)
    talk.exchange()
    decision = talk.exchange()
    assert isinstance(decision, Forward)
    assert list(entries(decision.request)) == [(b"t", 3), (b"u", 0)]
    made_up = ResponseTopic(b"t", made_up_entries(version, [(partition, 1000) for partition in range(3)]))
    assert decision.expected[:2] == (
        encode_response_topics(version, [made_up]),
        1,
    )


def test_follower_that_changes_its_version_is_asked_for_anew() -> None:
    """What is kept of a partition has the layout of its version: nothing of it is made up in another.

    That one of them had caught up lately is still known.
    """
    talk = conversation(3, 0)
    talk.exchange()
    talk.exchange()
    talk.follower.version = 5
    probe = talk.exchange()
    assert isinstance(probe, Forward)
    asked = [fields["partition_max_bytes"] for (name, _), fields in entries(probe.request).items() if name == b"t"]
    assert asked == [PARTITION_MAX_BYTES, 0, 0, 0]
    decision = talk.exchange()
    assert isinstance(decision, Forward)
    made_up = [made_up_entries(5, [(partition, 1000)]) for partition in range(3)]
    expected = [encode_response_topics(5, [ResponseTopic(b"t", b"".join(order))]) for order in permutations(made_up)]
    assert decision.expected.appended in expected


@pytest.mark.parametrize("version", VERSIONS)
def test_mean_rate_keeps_to_the_quota(version: int) -> None:
    talk = conversation(version, 5 * MB)
    start = talk.clock.now
    talk.run(10)
    assert mean_rate(talk.follower.received, start + 1, start + 10) == pytest.approx(5 * MB, rel=0.05)
