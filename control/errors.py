# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between weir and a cluster."""

from __future__ import annotations


class ControlError(Exception):
    """The cluster refused or did not answer. `action` is what was asked, `reason` what it said."""

    def __init__(self, action: str, reason: str) -> None:
        self.action = action
        self.reason = reason
        super().__init__(f"{action} failed: {reason}")


class MoveError(Exception):
    """A move cannot be done as asked; the text says why, without a full stop."""


class NothingBegunError(MoveError):
    """A move cannot be done as asked, and none of it has begun."""
