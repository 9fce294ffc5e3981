"""The event loop and the process's limits."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import Literal

EVENT_LOOP: Literal["asyncio", "uvloop"] = "asyncio"
"""Which loop runs the sidecar. The bench decides (docs/performance.md); WEIR_EVENT_LOOP lets it compare the two."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of the kind chosen; asyncio's own where uvloop is not installed."""
    if os.environ.get("WEIR_EVENT_LOOP", EVENT_LOOP) == "uvloop":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one: each connection takes two. Return the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard
