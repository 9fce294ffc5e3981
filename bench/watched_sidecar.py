# SPDX-License-Identifier: Apache-2.0
"""A sidecar that tells what a turn of its event loop takes; `processes.sidecar` runs it with the weir of any checkout.

At each SIGUSR1 it prints the 99th percentile and the
longest of the turns since the last one, in milliseconds of CPU: what else the machine does is not in them.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from weir.proxy import server
from weir.proxy.config.load import load_config


class WatchedLoop(asyncio.SelectorEventLoop):
    """Notes what each turn takes."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []
        self.add_signal_handler(signal.SIGUSR1, self.tell)

    def _run_once(self) -> None:
        start = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turns.append(time.thread_time() - start)

    def tell(self) -> None:
        """Print the figures, and begin anew."""
        turns, self.turns = sorted(self.turns) or [0.0], []
        print(1000 * turns[int(len(turns) * 0.99)], 1000 * turns[-1], flush=True)


def main() -> None:
    """Run the sidecar whose file is the last argument."""
    server.new_event_loop = WatchedLoop  # type: ignore[attr-defined]
    server.run_sidecar(load_config(Path(sys.argv[-1])), Path(sys.argv[-1]), "bench")
