# SPDX-License-Identifier: Apache-2.0
"""Every figure that somebody chose for a fetch's throttle, with its reason. What follows from another is so defined.

Seconds "of quota" are the bytes that a quota allows in that time. What Kafka's protocol defines is in its own module.
"""

from __future__ import annotations

from typing import Final

from weir.protocol.take_out import MOST_HELD

# A quota's ledger
WINDOW_SECONDS: Final = 1.0  # any second: what the promise is about
"""Also a quota's most credit while fetches wait at leaders: what it allows in so many seconds.

And how long a link counts as one with live traffic after a record of a partition that needs no budget.
"""
WINDOW_SLACK: Final = 0.04  # an answer takes a part of each second; without slack the mean would fall short by it
CREDIT_SECONDS: Final = 0.25  # of quota: the most credit that a link waits for
TICK_SECONDS: Final = 0.001  # the event loop's resolution: sends in one count together, and no hold is shorter
"""Also the first share of a link in a crowd, in seconds of quota: so all of them begin within a second."""
SHORTEST_WAIT_SECONDS: Final = 0.05  # for what brings nothing: else its follower would ask at once, for ever
"""Also the smallest share worth a fetch, in seconds of quota, where the window has no room for a whole one."""
EPSILON_BYTES: Final = 0.5  # absorbs the rounding of the credit, a float; rates are integers
LEAST_BYTES: Final = 2**13  # what may be on its way to a follower at least, however slow it is
"""Also the base of the caps after grants that brought nothing: 16 KiB after the first, 32 KiB after the second."""
LONGEST_WAIT_SECONDS: Final = 0.7  # how long bytes are held back for want of room, unless very many links hold some
STUCK_SECONDS: Final = 5.0  # a peer that takes an answer, or asks again, later than this counts as stuck
"""Also how long a lapsed claim keeps its place. Nobody waits for it meanwhile."""
LOOK_SECONDS: Final = 0.1  # ten looks a second at most: for stuck peers, and whether kip73's rate has fallen

# How large a share is
SHARE_SECONDS: Final = 0.12  # of quota for one fetch: few enough to pace evenly, enough to waste little on cut batches
"""Also what all links together may ask for while nothing is set aside for it."""
SHARE_BESIDE_LIVE_SECONDS: Final = SHARE_SECONDS / 10  # on a link with live traffic a record waits for each share
LARGEST_SHARE_SECONDS: Final = 0.15  # the most that a fetch which comes a little late is granted, in seconds of quota
SLOW_SECONDS: Final = 0.1  # on links with answers slower than this, a share is what gathers during an answer
SLOWEST_SHARE_SECONDS: Final = 0.9  # of quota: the most that a fetch on such a link has, as it may arrive at once
ROUND_SECONDS: Final = 3.5  # the time in which every link in line has a share, however many there are
CROWD: Final = 8  # so many links in line are a crowd: they came at once, as after a restart

# The line
FLOOR: Final = 0.05  # the part of the granted bytes for what is not the most urgent, so that nothing starves
CLAIM_SECONDS: Final = 0.5  # how long a claim keeps others waiting if its link does not plan again
"""No less than `replica.fetch.wait.max.ms` is by default, after which a follower whose fetch is held asks again.

Also how long a quota's budget is left to a link that waits for the budget of another quota, too.
"""
MOST_FINISHED: Final = 10_000  # brokers whose last turn is remembered; with more ids than that all are forgotten

# A fetch
PROBE_SECONDS: Final = 10.0  # without a true answer, on the follower's side: a probe may bring a batch there
FREE_PROBE_SECONDS: Final = 4.0  # the same on the leader's side, where a probe brings no records
LATE_SECONDS: Final = 0.5  # an answer that begins later has waited at the leader; one that takes longer to come is slow
SLOW_BROKER_SECONDS: Final = 0.2  # after a later answer beside the broker nothing is set aside for the next one
"""A busy machine's are seldom later. What is set aside counts until the follower asks again, so it is more exact."""
AT_ONCE_SECONDS: Final = 0.07  # what an answer that did not wait takes longer than the quickest one
LONGEST_RIDE_SECONDS: Final = 0.02  # how long a grant waits at the leader for a live record: both come in one answer
LONGEST_HOLD_SECONDS: Final = 30.0  # a fetch is held no longer: a follower's socket times out after 30 s by default
PASSING_SECONDS: Final = 0.04  # how long a grant may take to pass beside live traffic, whose records wait behind it
BESIDE_OTHERS: Final = 0.125  # of what passes without a quota: so much more hardly makes an answer longer
EXPECTED_SECONDS: Final = 5.0  # how long answers are expected to be as one was: full of others, or made to wait
RANK_SECONDS: Final = 0.5  # how long a ranking is kept: one of thousands of partitions costs more than a fetch
LEAST_SHARED: Final = 16  # how many partitions may share a grant; twice as many as the last answer had records of
HELD_BYTES: Final = int(0.9 * MOST_HELD)  # granted in an answer that loses its tails: there is more in it than grants
ABSENT_SECONDS: Final = 15.0  # how long an absent partition is remembered: longer than a hop leaves one out
MOST_TOPICS: Final = 100_000  # whose bytes are counted one by one, and of whose names or ids something is known
MOST_PARTITIONS: Final = 200_000  # of one follower on one connection; Kafka recommends no more in a whole cluster
MOST_PATTERNS: Final = 10_000  # of quotas, with a wildcard in their midst, that are kept ready for use

# Batches
EVEN_SPREAD: Final = 0.002  # sizes this close together count as equal: their caps waste 0.2 % at most
FEW: Final = 4  # fewer batches than this are not enough to conclude anything
MANY_BATCHES: Final = 50  # with a cap of this many batches about half of one is wasted: 1 %
SOME_BATCHES: Final = 2  # the same where one batch an answer would leave quota unused: a quarter is wasted at most
FORGIVEN_MISSES: Final = 6  # grants that may bring nothing where sizes are known: another hop may have had no budget
BARREN_BEFORE_FIRST: Final = 2  # grants of growing size that bring nothing before one goes in the first place

# What one step of long work takes, so that others wait for about 2 ms (`PER_STEP` where a step only looks)
PARTITIONS_PER_STEP: Final = 60  # taken in, each in a new topic; topics settled; topics and partitions freed
PATTERNS_PER_PARTITION: Final = 50  # quotas' patterns that are compared with a name in the time of one partition
