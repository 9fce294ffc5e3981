# SPDX-License-Identifier: Apache-2.0
"""A replica as the page names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition's replica on the broker `broker_id`; shown as `orders-3 on 2`."""

    topic: str
    partition: int
    broker_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on {self.broker_id}"
