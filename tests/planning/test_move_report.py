# SPDX-License-Identifier: Apache-2.0
import pytest

from weir.planning.arithmetic import QuotaTooLow
from weir.planning.assignment import Partition
from weir.planning.move_report import BrokerLoad, report

FOO_0, FOO_1 = Partition("foo", 0), Partition("foo", 1)
CURRENT = {FOO_0: (1, 2), FOO_1: (1, 2)}
PROPOSED = {FOO_0: (3, 2), FOO_1: (1, 2)}
FOUND = report(CURRENT, PROPOSED, {FOO_0: 1, FOO_1: 1}, {FOO_0: 1000, FOO_1: 50}, {1, 2, 3}, 20)


def test_leader_sends_what_a_new_replica_receives() -> None:
    assert FOUND.loads == (BrokerLoad(1, 2, 1, 0, 1000), BrokerLoad(2, 2, 2, 0, 0), BrokerLoad(3, 0, 1, 1000, 0))
    assert FOUND.total == 1000


def test_move_ratio_is_of_all_partitions_of_the_cluster() -> None:
    """KIP-73: #partitions-to-be-moved / #total-partition-count."""
    assert (FOUND.moving, FOUND.ratio) == (1, 0.05)


def test_time_is_that_of_the_broker_with_most_to_do() -> None:
    assert FOUND.seconds(300, 100.0) == 5.0
    with pytest.raises(QuotaTooLow):
        FOUND.seconds(100, 100.0)


def test_plan_that_moves_nothing_takes_no_time() -> None:
    nothing = report(CURRENT, CURRENT, {FOO_0: 1, FOO_1: 1}, {}, {1, 2}, 20)
    assert (nothing.total, nothing.busiest, nothing.seconds(1, 100.0)) == (0, None, 0.0)


def test_partition_without_a_leader_is_sent_by_nobody() -> None:
    found = report({FOO_0: (1,)}, {FOO_0: (2,)}, {FOO_0: -1}, {}, {1, 2}, 1)
    assert [load.broker for load in found.loads] == [1, 2]
