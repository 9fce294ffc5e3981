# SPDX-License-Identifier: Apache-2.0
"""SASL passes: each follower of one leader authenticates by a mechanism of its own, through the sidecars between them.

The brokers authorize what they are asked. Kerberos needs a key distribution centre here, and is left out without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.moves import MB, assert_identical, assert_rate, filled, moving, now
from tests.integration.secured import RATE, accepted
from weir.lab import kerberos
from weir.lab.network import LOOPBACK
from weir.lab.received import ReceivedBytes
from weir.lab.sasl import SERVICE, Mechanism
from weir.lab.secured import SecuredCluster
from weir.lab.security import principal
from weir.lab.settings import Route

pytestmark = pytest.mark.integration

LEADER = 2  # broker 1 is the controller, from which all fetch by PLAIN
FOLLOWERS: dict[Mechanism, int] = {"SCRAM-SHA-512": 1, "PLAIN": 3, "OAUTHBEARER": 4, "GSSAPI": 5}
KERBEROS = pytest.mark.skipif(kerberos.missing() is not None, reason=f"no Kerberos: {kerberos.missing()}")
MECHANISMS = [pytest.param(one, marks=[KERBEROS] if one == "GSSAPI" else []) for one in FOLLOWERS]


def followers() -> dict[Mechanism, int]:
    """Return the followers that can be had here, by mechanism."""
    return {one: broker for one, broker in FOLLOWERS.items() if one != "GSSAPI" or kerberos.missing() is None}


class Moves:
    """A throttled move from the leader to each follower, all at once, for longer than a SASL session."""

    def __init__(self, cluster: SecuredCluster) -> None:
        self.cluster = cluster
        self.received: dict[Mechanism, ReceivedBytes] = {}
        self.topics = {one: filled(cluster, f"to-{broker}", [LEADER], 16 * MB) for one, broker in followers().items()}
        self.begun: dict[Mechanism, float] = {}
        self.ended: dict[Mechanism, float] = {}
        self.more_connections = 0.0

    def run(self) -> None:
        sidecar = self.cluster.sidecars[LEADER]
        quotas = [
            {"name": f"to-{broker}", "side": "leader", "rate": RATE, "peers": [broker]}
            for broker in followers().values()
        ]
        sidecar.put_throttle({"quotas": quotas})
        with ExitStack() as all_moves:
            for one, broker in followers().items():
                move = moving(self.cluster, [self.topics[one]], [LEADER, broker])
                self.received[one] = all_moves.enter_context(move)
            self.begun = self._when_each_has(MB // 2)
            before = accepted(sidecar)
            self.ended = self._when_each_has(13 * MB)
            self.more_connections = accepted(sidecar) - before
            sidecar.delete_throttle()

    def _when_each_has(self, size: int) -> dict[Mechanism, float]:
        """Wait until each follower has more than `size` bytes; return when it had, in its series' seconds."""
        reached: dict[Mechanism, float] = {}

        def have_all() -> bool:
            for one, received in self.received.items():
                if received.total > size:
                    reached.setdefault(one, now(received))
            return len(reached) == len(self.received)

        self.cluster.wait_for(f"{size} bytes at each follower", have_all, 60)
        return reached


@pytest.fixture(scope="module")
def moves() -> Iterator[Moves]:
    with SecuredCluster(
        "SASL_PLAINTEXT",
        mechanisms={broker: one for one, broker in followers().items()},
        own_names=True,
        brokers=1 + len(followers()),
        routes=Route.BOTH,
        poll_isr=True,
    ) as cluster:
        at_start = cluster.denials()
        moves = Moves(cluster)
        moves.run()
        yield moves
        assert cluster.denials() == at_start
        cluster.check_logs()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_move_keeps_its_rate_while_sasl_sessions_end(moves: Moves, mechanism: Mechanism) -> None:
    """A session ends after 10 s, in the midst of fetches that are held; the follower renews it on its connection."""
    follower = FOLLOWERS[mechanism]
    series = moves.received[mechanism].series()
    assert_rate(series, moves.begun[mechanism], moves.ended[mechanism], RATE)
    assert_identical(moves.cluster, [moves.topics[mechanism]], LEADER, follower)
    assert moves.cluster.fetchers(LEADER) == {(principal(broker), LOOPBACK) for broker in followers().values()}
    assert moves.more_connections == 0
    if mechanism == "GSSAPI":
        assert moves.cluster.realm is not None
        tickets, ticket = (
            moves.cluster.realm.tickets,
            (f"{SERVICE}/{principal(follower)}", f"{SERVICE}/{principal(LEADER)}"),
        )
        moves.cluster.wait_for(f"a ticket of {ticket}", lambda: ticket in tickets(), 20)
