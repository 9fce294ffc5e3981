# SPDX-License-Identifier: Apache-2.0
"""Structured logs on stderr: one line per event, as `key=value` or JSON. Repeated faults are only counted."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from weir.access.tls_contexts import verification_words

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


FAULT_INTERVAL_SECONDS = 10.0
"""The same fault of the same peer is logged at most once in this time, with a count of the suppressed ones."""

_KINDS_REMEMBERED = 1024
_KIND_LENGTH = 60  # of a library's message: what follows differs from line to line
_BARE = re.compile(r"[^\s\"=\\]+")
_FIELDS = "weir_fields"
_SUPPRESSED = "weir_suppressed"


class _RepeatLimit:
    """Lets one line per kind through in FAULT_INTERVAL_SECONDS. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # by kind: when a line was last logged, and how many were suppressed since
        self._logged: dict[tuple[str, object], tuple[float, int]] = {}

    def admit(self, kind: tuple[str, object]) -> int | None:
        """Return how many lines of this kind were suppressed since the last one; None to suppress this one too."""
        now = self._clock()
        logged_at, suppressed = self._logged.get(kind, (None, 0))
        if logged_at is not None and now - logged_at < FAULT_INTERVAL_SECONDS:
            self._logged[kind] = (logged_at, suppressed + 1)
            return None
        if len(self._logged) >= _KINDS_REMEMBERED and kind not in self._logged:
            self._forget(now)
        self._logged[kind] = (now, 0)
        return suppressed

    def _forget(self, now: float) -> None:
        old = [kind for kind, (at, _) in self._logged.items() if now - at >= FAULT_INTERVAL_SECONDS]
        # If none is old enough, the one logged first goes: memory stays bounded however many peers there are.
        for kind in old or [min(self._logged, key=lambda kind: self._logged[kind][0])]:
            del self._logged[kind]


class EventLog:
    """Writes the events of one part of the sidecar through the standard library's logging.

    `clock` gives monotonic seconds, and is read for faults only.
    """

    def __init__(self, name: str = "weir", clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logging.getLogger(name)
        self._faults = _RepeatLimit(clock)

    def info(self, event: str, **fields: object) -> None:
        """Log an event that an operator expects."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an operator should know of. For one that may come in floods, see `fault`."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a failure of the sidecar itself."""
        self._write(logging.ERROR, event, fields)

    def fault(self, event: str, peer: object, **fields: object) -> None:
        """Log a fault of `peer` as a warning, at most once in FAULT_INTERVAL_SECONDS for each event and peer.

        The next line has `suppressed`, the number of faults in between.
        """
        self.repeated(event, peer, peer=peer, **fields)

    def repeated(self, event: str, kind: object, /, **fields: object) -> None:
        """Log a warning at most once in FAULT_INTERVAL_SECONDS for each event and kind, as `fault` does for a peer."""
        suppressed = self._faults.admit((event, kind))
        if suppressed is not None:
            counted = {"suppressed": suppressed} if suppressed else {}
            self._write(logging.WARNING, event, {**fields, **counted})

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={_FIELDS: fields})


class LibraryLimit(logging.Filter):
    """Lets through weir's own lines, and those of libraries once in FAULT_INTERVAL_SECONDS for each kind.

    A client that sends garbage, or a process without descriptors, makes libraries write a line each time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = _RepeatLimit(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be written."""
        if hasattr(record, _FIELDS):
            return True
        suppressed = self._limit.admit((record.name, str(record.msg)[:_KIND_LENGTH]))
        setattr(record, _SUPPRESSED, suppressed)
        return suppressed is not None


class KeyValueFormatter(logging.Formatter):
    """`time=... level=info event=listening side=leader ...`, values quoted where they hold blanks or quotes."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        return " ".join(f"{key}={_key_value(value)}" for key, value in _record_fields(record).items())


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the keys of the `key=value` form."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        return json.dumps(_record_fields(record), default=str, separators=(",", ":"))


def configure_logging(*, as_json: bool = False, level: str = "info", stream: TextIO | None = None) -> None:
    """Send the logs of this process, libraries' included, to `stream` in one form.

    Without a stream they go to stderr, written by a thread.

    It may be called again for another form or level.
    """
    root = logging.getLogger()
    writers: list[logging.Handler] = [handler for handler in root.handlers if isinstance(handler, WriterHandler)]
    if stream is not None:
        writers = [logging.StreamHandler(stream)]
    root.handlers[:] = writers or [WriterHandler(sys.stderr)]
    root.handlers[0].setFormatter(JsonFormatter() if as_json else KeyValueFormatter())
    root.handlers[0].filters[:] = [LibraryLimit()]
    root.setLevel(level.upper())
    # Both write one line or more for faults that the event log has once, and rate-limited.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)


def close_log() -> None:
    """Write what waits, and end the log's thread. `configure_logging` begins anew."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, WriterHandler)]:
        root.removeHandler(handler)
        handler.close()


def os_error_reason(error: OSError) -> str:
    """Return the system's words for an error; asyncio's own ("Connect call failed") say less."""
    if isinstance(error, ssl.SSLError):  # its numbers are OpenSSL's
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"TLS failed: {verification_words(error)}"
        words = getattr(error, "reason", None) or error.strerror or str(error)
        return f"TLS failed: {words.lower().replace('_', ' ')}"
    # a failed resolution of a name has a number below 0, of its own
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def _record_fields(record: logging.LogRecord) -> dict[str, object]:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    fields: dict[str, object] = {
        "time": f"{seconds}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
    }
    own = getattr(record, _FIELDS, None)
    if own is None:
        fields |= {"event": "library", "logger": record.name, "message": record.getMessage()}
        if suppressed := getattr(record, _SUPPRESSED, 0):
            fields["suppressed"] = suppressed
    else:
        fields |= {"event": record.msg, **own}
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = repr(record.exc_info[1])
        fields["at"] = innermost_frame(record.exc_info[1])
    return fields


def innermost_frame(error: BaseException) -> str:
    """Return where an exception was raised, as `file:line`."""
    trace = error.__traceback__
    if trace is None:
        return "unknown"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _key_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    is_printable = text.isprintable()  # no control, line separator or lone surrogate: a terminal would act on it
    return text if is_printable and _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=not is_printable)
