"""Writes log lines from a thread, so that a stderr that nobody reads cannot hold up the event loop."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import Final, TextIO

MAX_LINES: Final = 1000
"""The most lines that wait to be written; further ones are dropped."""

_END_SECONDS: Final = 1.0


class WriterHandler(logging.Handler):
    """Formats at once and writes later. How many lines were dropped is told in a line after those that waited.

    The standard library's QueueHandler with a QueueListener does the same, but its `stop` waits for the writing thread
    without an end: a process whose stderr nobody reads would never exit.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._dropped = 0
        self._writing = threading.Thread(target=self._write, name="log", daemon=True)
        self._writing.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line, or count it where too many lines wait."""
        line = self.format(record)
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write the waiting lines within a second. logging calls this at the end of the process."""
        super().close()
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_END_SECONDS)
            self._writing.join(_END_SECONDS)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            self._put(line)
            if self._lines.empty():
                self._tell_dropped()
        self._tell_dropped()

    def _put(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody is left to be told
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._put(self._dropped_line())

    def _dropped_line(self) -> str:
        self.acquire()  # `emit` is called with this lock held
        try:
            dropped, self._dropped = self._dropped, 0
        finally:
            self.release()
        record = logging.LogRecord("weir", logging.WARNING, "", 0, "log_lines_dropped", None, None)
        record.weir_fields = {"count": dropped, "reason": "what reads this log is too slow"}
        return self.format(record)
