# SPDX-License-Identifier: Apache-2.0
"""Who holds up what is behind, as a sentence."""

from __future__ import annotations

import pytest

from weir.proxy.admin.held_up import Facts, Limit, held_up_by

MB = 1_000_000


def listed(quota: int, rate: float) -> tuple[Limit, ...]:
    return (Limit("", quota, rate),)


@pytest.mark.parametrize(
    ("facts", "by", "sentence"),
    [
        (Facts(0, 0, 0), "nobody", "Nothing is behind."),
        (Facts(0, 0, 0, listed(5 * MB, 5 * MB), waiting=(2,)), "nobody", "Nothing is behind."),
        (
            Facts(3, 3, 0, listed(5 * MB, 4.9 * MB), waiting=(2, 3)),
            "quota",
            "The quota holds 3 partitions of brokers 2, 3 back: 4.9 MB/s of 5 MB/s used.",
        ),
        (Facts(1, 1, 0, listed(0, 0.0)), "quota", "The quota holds 1 partition back: 0 B/s of 0 B/s used."),
        (
            Facts(3, 3, 0, listed(5 * MB, 0.0), waiting=(1, 2, 3, 4, 5)),
            "quota",
            "The quota holds 3 partitions of brokers 1, 2, 3 and 2 more back: 0 B/s of 5 MB/s used.",
        ),
        (
            Facts(1, 1, 0, listed(5 * MB, 1 * MB)),
            "elsewhere",
            "1 partition is behind, but the quota has room (1 MB/s of 5 MB/s used):"
            " a disk, the network or the other side.",
        ),
        (
            Facts(2, 2, 0, (Limit("", 5 * MB, 1 * MB), Limit("recovery", 3 * MB, 2.9 * MB)), waiting=(2,)),
            "quota",
            'The quota "recovery" holds 2 partitions of broker 2 back: 2.9 MB/s of 3 MB/s used.',
        ),
        (
            Facts(7, 1, 0, listed(5 * MB, 5 * MB), waiting=(2,)),
            "quota",
            "The quota holds 1 partition of broker 2 back: 5 MB/s of 5 MB/s used. 6 partitions more without a quota.",
        ),
        (
            Facts(7, 0, 0, listed(5 * MB, 5 * MB)),
            "elsewhere",
            "7 partitions are behind, and none of weir's quotas covers what is.",
        ),
        (Facts(2000, 2000, 0), "elsewhere", "2,000 partitions are behind, and none of weir's quotas is in force here."),
        (
            Facts(9, 9, 4, listed(5 * MB, 5 * MB), waiting=(2,), stuck=(3,)),
            "replica",
            "Broker 3 no longer follows 4 partitions (no fetch, or errors only): look at its log.",
        ),
    ],
)
def test_held_up_by_names_the_one_to_look_at(facts: Facts, by: str, sentence: str) -> None:
    assert held_up_by(facts) == (by, sentence)
