"""Structured logs: the two forms, and repeated faults counted in place of repeated."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from proxy import log as weir_log
from proxy.log import EventLog, JsonFormatter, KeyValueFormatter, configure_logging
from proxy.log_writer import MAX_LINES, WriterHandler


@pytest.fixture(autouse=True)
def _restored_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def lines() -> io.StringIO:
    stream = io.StringIO()
    configure_logging(stream=stream)
    return stream


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_log_event_is_one_line_of_keys_and_values(lines: io.StringIO) -> None:
    EventLog().info("listening", side="leader", listen="127.0.0.1:9501", ready=True)
    line = lines.getvalue()
    assert line.endswith(" level=info event=listening side=leader listen=127.0.0.1:9501 ready=true\n")
    assert line.startswith("time=2") and line.split()[0].endswith("Z")


def test_log_values_with_blanks_quotes_and_line_ends_are_quoted(lines: io.StringIO) -> None:
    EventLog().warning("odd", a="two words", b='say "x"', c="a\nb", d="", e="k=v")
    assert lines.getvalue().endswith(r' a="two words" b="say \"x\"" c="a\nb" d="" e="k=v"' + "\n")
    assert lines.getvalue().count("\n") == 1


def test_log_json_holds_the_same_keys() -> None:
    stream = io.StringIO()
    configure_logging(as_json=True, stream=stream)
    EventLog().error("broken", peer=2, error=ValueError("x"))
    event = json.loads(stream.getvalue())
    assert (event["level"], event["event"], event["peer"], event["error"]) == ("error", "broken", 2, "x")


def test_log_level_hides_what_is_below_it() -> None:
    stream = io.StringIO()
    configure_logging(level="warning", stream=stream)
    EventLog().info("quiet")
    EventLog().warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_log_of_a_library_is_one_line_even_with_a_traceback(lines: io.StringIO) -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    assert lines.getvalue().count("\n") == 1
    assert "error=RuntimeError('boom') " in lines.getvalue()
    assert f"at={__file__}:" in lines.getvalue()


def test_log_repeated_fault_is_suppressed_and_counted(lines: io.StringIO) -> None:
    clock = Clock()
    log = EventLog(clock=clock)
    for _ in range(4):
        log.fault("upstream_refused", peer=2)
    assert lines.getvalue().count("\n") == 1
    clock.now += 9.999
    log.fault("upstream_refused", peer=2)
    assert lines.getvalue().count("\n") == 1
    clock.now += 0.001
    log.fault("upstream_refused", peer=2)
    assert lines.getvalue().endswith("event=upstream_refused peer=2 suppressed=4\n")
    clock.now += 10
    log.fault("upstream_refused", peer=2)
    assert lines.getvalue().endswith("event=upstream_refused peer=2\n")


def test_log_faults_of_other_events_and_peers_are_not_suppressed(lines: io.StringIO) -> None:
    log = EventLog(clock=Clock())
    log.fault("upstream_refused", peer=2)
    log.fault("upstream_refused", peer=3)
    log.fault("protocol_error", peer=2)
    assert lines.getvalue().count("\n") == 3


def test_log_flood_of_peers_does_not_grow_memory(lines: io.StringIO) -> None:
    log = EventLog(clock=Clock())
    for peer in range(weir_log._FAULTS_REMEMBERED + 50):
        log.fault("upstream_refused", peer=peer)
    assert len(log._faults) == weir_log._FAULTS_REMEMBERED


@pytest.fixture
def unread() -> Iterator[tuple[WriterHandler, TextIO]]:
    """A handler that writes to a pipe, and the end of the pipe from which nothing was read yet."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as received, os.fdopen(writing, "w") as stream:
        handler = WriterHandler(stream)
        handler.setFormatter(KeyValueFormatter())
        yield handler, received
        handler.close()


def log_numbers(handler: logging.Handler, count: int) -> None:
    for number in range(count):
        handler.handle(logging.LogRecord("x", logging.INFO, "", 0, f"{number} {'x' * 200}", None, None))


def test_log_lines_that_nobody_reads_stop_no_one_and_those_dropped_are_counted(
    unread: tuple[WriterHandler, TextIO],
) -> None:
    handler, received = unread
    log_numbers(handler, 5 * MAX_LINES)
    lines = []
    while "event=log_lines_dropped" not in (line := received.readline()):
        lines.append(line)
    assert MAX_LINES <= len(lines) < 3 * MAX_LINES
    assert [f'message="{number} ' in line for number, line in enumerate(lines)] == [True] * len(lines)
    assert f"count={5 * MAX_LINES - len(lines)} " in line
    log_numbers(handler, 1)
    assert 'message="0 ' in received.readline()


def test_log_is_written_to_its_end_when_the_handler_is_closed(unread: tuple[WriterHandler, TextIO]) -> None:
    handler, received = unread
    log_numbers(handler, 10)
    handler.close()
    assert not handler._writing.is_alive()
    assert [f'message="{number} ' in received.readline() for number in range(10)] == [True] * 10


def test_log_configured_again_is_written_by_the_same_thread() -> None:
    configure_logging()
    (handler,) = logging.getLogger().handlers
    configure_logging(as_json=True)
    assert logging.getLogger().handlers == [handler]
    assert isinstance(handler, WriterHandler)
    assert isinstance(handler.formatter, JsonFormatter)
    handler.close()
