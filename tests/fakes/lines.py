# SPDX-License-Identifier: Apache-2.0
"""The line of links that wait for a throttle's listed replicas' quota."""

from __future__ import annotations

from weir.quota.budget.queue import BudgetQueue
from weir.quota.budget.strict import StrictQuota
from weir.quota.side_state import SideState


def line_of(throttle: SideState) -> BudgetQueue:
    """Return the line of the `strict` policy's quota."""
    strict = throttle.quotas[0]
    assert isinstance(strict, StrictQuota)
    return strict.line
