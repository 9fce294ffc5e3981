"""A sidecar that tells what a turn of its event loop takes, for `bench.attacks`: `python watched_sidecar.py CONFIG`.

It runs the sidecar of the directory that it is started in. At each SIGUSR1 it prints the 99th percentile and the
longest of the turns since the last one, in milliseconds of CPU: what else the machine does is not in them.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

sys.path[0] = str(Path.cwd())

from weir.proxy import server  # noqa: E402 - of that directory
from weir.proxy.config.load import load_config  # noqa: E402

_MOST_TURNS = 1_000_000


class WatchedLoop(asyncio.SelectorEventLoop):
    """Notes what each turn takes."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []

    def _run_once(self) -> None:
        start = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turns.append(time.thread_time() - start)
        del self.turns[_MOST_TURNS:]

    def tell(self) -> None:
        """Print the figures, and begin anew."""
        turns, self.turns = sorted(self.turns) or [0.0], []
        print(1000 * turns[int(len(turns) * 0.99)], 1000 * turns[-1], flush=True)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop that is watched."""
    loop = WatchedLoop()
    loop.add_signal_handler(signal.SIGUSR1, loop.tell)
    return loop


if __name__ == "__main__":
    server.new_event_loop = new_event_loop  # type: ignore[attr-defined]
    server.run_sidecar(load_config(Path(sys.argv[1])), Path(sys.argv[1]), "bench")
