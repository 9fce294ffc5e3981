# SPDX-License-Identifier: Apache-2.0
"""KIP-74's cap on one replica fetch, in versions with and without the field."""

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import PARTITION_MAX_BYTES, Follower, requested
from weir.protocol.fetch_request import FetchRequest
from weir.quota.fetch.decisions import Forward
from weir.quota.fetch.request_parts import limit_response
from weir.quota.settings import ThrottleSettings
from weir.quota.throttle import Throttle


def request(version: int, partitions: int = 4) -> FetchRequest:
    return Follower({(b"t", partition): 0 for partition in range(partitions)}, version=version).request()


def rounds_of(asked: FetchRequest, limit: int, count: int) -> list[FetchRequest]:
    return [limit_response(asked, limit, number) for number in range(count)]


def included(limited: FetchRequest) -> list[int]:
    return [partition for (_, partition), (_, max_bytes) in requested(limited).items() if max_bytes]


def test_v3_sets_the_top_level_field_and_nothing_else() -> None:
    asked = request(3)
    (limited,) = rounds_of(asked, 1000, 1)
    assert limited == asked.with_(max_bytes=1000)


def test_v3_keeps_a_smaller_limit_and_never_asks_for_zero() -> None:
    asked = request(3)
    assert rounds_of(asked, asked.max_bytes + 1, 1) == [asked]
    assert rounds_of(asked, 0, 1)[0].max_bytes == 1


def test_v2_leaves_whole_partitions_out_in_turns() -> None:
    asked = request(2, 5)
    rounds = rounds_of(asked, 2 * PARTITION_MAX_BYTES, 5)
    assert [sorted(included(limited)) for limited in rounds] == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]
    assert all(limited.max_wait_ms <= 50 for limited in rounds)


def test_v2_takes_one_partition_even_where_none_fits() -> None:
    asked = request(2, 3)
    assert [included(limited) for limited in rounds_of(asked, 1, 4)] == [[0], [1], [2], [0]]


def test_v2_within_the_limit_is_left_as_it_is() -> None:
    asked = request(2)
    assert rounds_of(asked, 4 * PARTITION_MAX_BYTES, 1)[0] is asked


def test_limit_holds_for_a_link_without_a_quota() -> None:
    throttle = Throttle("leader", 1, MovedClock(), ThrottleSettings(response_max_bytes=PARTITION_MAX_BYTES))
    link = throttle.link(2)
    decision = link.plan(request(3))
    assert isinstance(decision, Forward)
    assert decision.request.max_bytes == PARTITION_MAX_BYTES
    link = throttle.link(3)
    taken = []
    for _ in range(4):
        decision = link.plan(request(2))
        assert isinstance(decision, Forward)
        taken += included(decision.request)
        link.settle(())
    assert taken == [0, 1, 2, 3]
