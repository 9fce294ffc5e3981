# SPDX-License-Identifier: Apache-2.0
"""Both sides throttled, in fetch sessions: what one hop leaves out, the other must not wait for in vain."""

import struct

import pytest

from tests.fakes.kafka.sessions import Key
from tests.fakes.kafka.wire import replica_fetch, request_topics, requested_partition
from tests.quota.sessions import BATCH, MB, cluster
from weir.protocol.fetch_request import ForgottenTopic
from weir.protocol.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from weir.quota.settings import ThrottleSettings
from weir.quota.throttled_replicas import ALL_REPLICAS, ThrottledReplicas

NOT_LEADER_OR_FOLLOWER = 6
MOST_IN_AN_ANSWER = 150_000  # bytes, at 1 MB/s


@pytest.mark.parametrize("version", [7, 13])
def test_the_last_partition_of_a_move_goes_on_after_a_pause(version: int) -> None:
    """In turn each hop has budget and leaves it out: neither may forget that it was wanted a moment ago."""
    made = cluster(0, 0, behind=1, version=version)
    made.follower.run(12)
    for throttle in made.throttles:
        throttle.configure(ThrottleSettings(rate=5 * MB, replicas={"t": ALL_REPLICAS}))
    made.follower.received.clear()
    made.follower.run(5)
    assert sum(size for _, size in made.follower.received) >= 0.9 * 4 * 5 * MB
    made.check()


def test_a_first_hop_that_gives_up_does_not_end_the_move() -> None:
    """It lets all pass from then on, and the second hop's session is not the follower's."""
    made = cluster(5 * MB, 5 * MB)
    made.follower.run(2)
    made.follower.upstream = made.hops[1]
    made.follower.received.clear()
    made.follower.run(5)
    assert made.follower.errors == [FETCH_SESSION_ID_NOT_FOUND]
    assert sum(size for _, size in made.follower.received) >= 0.9 * 5 * 5 * MB


@pytest.mark.parametrize("version", [7, 12])
def test_both_hops_tell_the_same_lag_of_a_move_without_producers(version: int) -> None:
    """The second hop sees a partition only now and then, as the first one leaves it out between its grants."""
    made = cluster(MB, 5 * MB, behind=4, version=version)
    for _ in range(5):
        made.follower.run(1)
        told = [{row[:2]: row.lag_messages for row in throttle.lag.rows()} for throttle in made.throttles]
        assert told[0].keys() == told[1].keys()
        # what the last answer brought is told with the next fetch
        assert max([abs(told[0][one] - told[1][one]) for one in told[0]]) <= MOST_IN_AN_ANSWER // BATCH


@pytest.mark.parametrize("partition", [0, 1])
def test_error_behind_a_hop_at_rate_0_reaches_the_follower(partition: int) -> None:
    """The first hop grants the two in turn and the second leaves both out: neither grant was an answer."""
    made = cluster(MB, 0, behind=2, in_sync=0)
    made.throttles[0].configure(ThrottleSettings(rate=MB, replicas={"t": ALL_REPLICAS}, order="round-robin"))
    made.follower.run(12)
    made.leader.leader.logs[b"t", partition].error_code = NOT_LEADER_OR_FOLLOWER
    error, changed_at = struct.pack(">ih", partition, NOT_LEADER_OR_FOLLOWER), made.clock.now
    while not any(error in topic.headers for topic in made.follower.fetch()[1]):
        assert made.clock.now - changed_at < 11
    made.check()


@pytest.mark.parametrize("version", [7, 12])
def test_first_hops_0_bytes_bring_nothing_before_its_grant(version: int) -> None:
    """The second hop holds back neither. It had not told the leader that the first one asks for both no more."""
    listed = ThrottleSettings(rate=0, replicas={"t": ThrottledReplicas.parse("2:1")})
    made = cluster(0, behind=3, in_sync=0, version=version, settings=listed)
    second = made.hops[0]

    def ask(epoch: int, caps: dict[int, int], *, forgotten: tuple[int, ...] = ()) -> dict[Key, int]:
        """Returns the bytes that come of each partition. All are asked for from the offset that they have reached."""
        offsets = made.follower.offsets
        request = replica_fetch(
            version,
            request_topics(
                [((b"t", one), requested_partition(version, one, offsets[b"t", one], cap)) for one, cap in caps.items()]
            ),
            session_id=second.link.sessions.follower.id,
            session_epoch=epoch,
            forgotten=(ForgottenTopic(b"t", forgotten),) if forgotten else (),
        )
        came = {(name, seen.partition): seen for name, _, records, _ in second.respond(request)[1] for seen in records}
        for key, seen in came.items():
            offsets[key] += seen.batches
        return {key: seen.size for key, seen in came.items()}

    ask(0, {0: 1, 1: 0, 2: 0})
    assert ask(1, {2: MB}, forgotten=(0, 1)) == {}
    assert ask(2, {1: BATCH, 0: 0}) == {(b"t", 1): BATCH}
    assert ask(3, {1: BATCH}) == {(b"t", 1): BATCH}
    assert made.leader.sessions[second.link.sessions.leader.id].partitions.keys() == {(b"t", 0), (b"t", 1)}
