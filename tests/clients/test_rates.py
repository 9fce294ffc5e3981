# SPDX-License-Identifier: Apache-2.0
"""How the rate of a client is told from when its records came."""

from tests.clients.checks import check_rate
from tests.clients.drivers import Outcome


def test_last_record_of_a_batch_may_come_half_way_to_the_next_one() -> None:
    """As sarama told of batches at 200 records/s, with an aborted one after each."""
    tails = {46: 1, 97: 1, 146: 1, 197: 1, 247: 1, 296: 1, 346: 1, 396: 1, 446: 1, 496: 1, 546: 1}
    batches = dict.fromkeys(range(71, 572, 50), 99)
    arrivals = {str(at): records for at, records in sorted({21: 100, **tails, **batches}.items())}
    outcome = Outcome(1200, 1200, arrivals, [])
    assert sum(arrivals.values()) == 1200
    assert outcome.rate(together=0.25) > 205, "half of the way is too short"
    assert outcome.rate(together=0.375) == 200
    check_rate(outcome, 200, 100)
