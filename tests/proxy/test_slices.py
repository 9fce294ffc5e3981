# SPDX-License-Identifier: Apache-2.0
"""The event loop runs within a long loop."""

from __future__ import annotations

import asyncio

from weir.proxy.slices import in_slices


async def test_others_run_after_each_slice_and_nothing_is_left_out() -> None:
    seen: list[int] = []
    asyncio.get_running_loop().call_soon(seen.append, -1)
    async for number in in_slices(range(5), 2):
        if number == 2:
            asyncio.get_running_loop().call_soon(seen.append, -2)
        seen.append(number)
    assert seen == [0, 1, -1, 2, 3, -2, 4]
