# SPDX-License-Identifier: Apache-2.0
"""The pool of buffers."""

from weir.proxy.relay.buffers import LARGE_BUFFER_SIZE, LEAST_BUFFER_SIZE, SHOWN_BY, SMALL_BUFFER_SIZE, BufferPool


def test_borrow_gives_large_buffers_up_to_the_limit_then_small() -> None:
    pool = BufferPool(large_limit=2)
    lent = [pool.borrow(True, SHOWN_BY) for _ in range(4)]
    assert [len(buffer) for buffer in lent] == [LARGE_BUFFER_SIZE] * 2 + [SMALL_BUFFER_SIZE] * 2
    pool.give_back(lent[0])
    assert len(pool.borrow(True, SHOWN_BY)) == LARGE_BUFFER_SIZE


def test_possibly_stuck_connections_leave_half_of_large_buffers() -> None:
    """The other half is for those whose peers read."""
    pool = BufferPool(large_limit=6)
    for passed, large in ((SHOWN_BY - 1, 3), (SHOWN_BY, 3), (0, 0)):
        lent = [pool.borrow(True, passed) for _ in range(10)]
        assert [len(buffer) for buffer in lent].count(LARGE_BUFFER_SIZE) == large


def test_borrow_gives_a_small_buffer_if_no_large_is_asked_for() -> None:
    assert len(BufferPool().borrow(False, SHOWN_BY)) == SMALL_BUFFER_SIZE


def test_thousands_of_stuck_connections_leave_the_least_buffers() -> None:
    pool = BufferPool(small_limit=2)
    lent = [pool.borrow(False, 0) for _ in range(4)]
    assert [len(buffer) for buffer in lent] == [SMALL_BUFFER_SIZE] * 2 + [LEAST_BUFFER_SIZE] * 2
    pool.give_back(lent[3])
    assert len(pool.borrow(False, 0)) == LEAST_BUFFER_SIZE
    pool.give_back(lent[0])
    assert len(pool.borrow(False, 0)) == SMALL_BUFFER_SIZE


def test_buffers_given_back_are_lent_again_and_excess_is_freed() -> None:
    """Small ones beyond the spares are the excess."""
    pool = BufferPool(large_limit=1, small_spares=2)
    for large, count in ((True, 1), (False, 2)):
        lent = [pool.borrow(large, SHOWN_BY) for _ in range(5)]
        for buffer in lent:
            pool.give_back(buffer)
        assert pool.large_lent == 0
        again = [pool.borrow(large, SHOWN_BY) for _ in range(5)]
        assert sum(any(buffer is other for other in lent) for buffer in again) >= count
        for buffer in again:
            pool.give_back(buffer)
    assert len(pool._small) == 2
    assert len(pool._large) == 1
