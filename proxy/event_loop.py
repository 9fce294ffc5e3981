"""The choice of the event loop, and the process's limit of open files."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import Literal

EVENT_LOOP: Literal["asyncio", "uvloop"] = "asyncio"
"""Which loop runs the sidecar, as decided by the bench (docs/performance.md). WEIR_EVENT_LOOP overrides it to compare.
"""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of the chosen kind; asyncio's own where uvloop is not installed."""
    if os.environ.get("WEIR_EVENT_LOOP", EVENT_LOOP) == "uvloop":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, as each link takes two. Returns the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard
