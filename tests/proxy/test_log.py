# SPDX-License-Identifier: Apache-2.0
"""Structured logs: the two forms, and repeated faults counted in place of repeated."""

from __future__ import annotations

import io
import json
import logging
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

from tests.fakes.clock import MovedClock
from weir.proxy import log as weir_log
from weir.proxy.log import (
    MAX_LINES,
    EventLog,
    JsonFormatter,
    KeyValueFormatter,
    LibraryLimit,
    WriterHandler,
    configure_logging,
    os_error_reason,
)


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


def test_log_event_is_one_line_of_keys_and_values(lines: io.StringIO) -> None:
    EventLog().info("listening", side="leader", listen="127.0.0.1:9501", ready=True)
    line = lines.getvalue()
    assert line.endswith(" level=info event=listening side=leader listen=127.0.0.1:9501 ready=true\n")
    assert line.startswith("time=2") and line.split()[0].endswith("Z")


def test_log_values_with_blanks_quotes_and_line_ends_are_quoted(lines: io.StringIO) -> None:
    EventLog().warning("odd", a="two words", b='say "x"', c="a\nb", d="", e="k=v")
    assert lines.getvalue().endswith(r' a="two words" b="say \"x\"" c="a\nb" d="" e="k=v"' + "\n")
    assert lines.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    "sign", ["\x00", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\ud800", "\udfff"]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_log_signs_that_a_terminal_would_act_on_are_escaped(sign: str, *, as_json: bool) -> None:
    stream = io.StringIO()
    configure_logging(as_json=as_json, stream=stream)
    EventLog().warning("odd", bare=f"a{sign}b", quoted=f"é {sign}")
    line = stream.getvalue()
    assert line.isascii() and line.removesuffix("\n").isprintable()
    assert line.count(f"\\u{ord(sign):04x}") == 2


def test_log_values_in_other_scripts_are_shown_as_they_are(lines: io.StringIO) -> None:
    EventLog().info("odd", a="größe", b="数 据")
    assert lines.getvalue().endswith(' a=größe b="数 据"\n')


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
    clock = MovedClock(100.0)
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


def test_log_fault_that_has_a_kind_is_written_with_it(lines: io.StringIO) -> None:
    EventLog().fault("protocol_error", "h", kind="malformed_frame")
    assert "kind=malformed_frame" in lines.getvalue()


def test_log_faults_of_other_events_or_peers_are_not_suppressed(lines: io.StringIO) -> None:
    log = EventLog(clock=MovedClock(100.0))
    log.fault("upstream_refused", peer=2)
    log.fault("upstream_refused", peer=3)
    log.fault("protocol_error", peer=2)
    assert lines.getvalue().count("\n") == 3


def test_log_flood_of_peers_does_not_grow_memory(lines: io.StringIO) -> None:
    log = EventLog(clock=MovedClock(100.0))
    for peer in range(weir_log._KINDS_REMEMBERED + 50):
        log.fault("upstream_refused", peer=peer)
    assert len(log._faults._logged) == weir_log._KINDS_REMEMBERED


def test_log_flood_of_a_library_is_suppressed_and_counted() -> None:
    clock = MovedClock(100.0)
    limit = LibraryLimit(clock)
    formatter = KeyValueFormatter()

    def line(message: str, number: int) -> str | None:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 0, message, (number,), None)
        return formatter.format(record) if limit.filter(record) else None

    flood = [line("socket.accept() out of system resource %d", number) for number in range(100)]
    assert (flood[0] or "").endswith('message="socket.accept() out of system resource 0"')
    assert flood[1:] == [None] * 99
    assert line("another thing %d", 1) is not None
    clock.now += 10
    assert (line("socket.accept() out of system resource %d", 7) or "").endswith(" suppressed=99")


def test_log_of_our_own_is_never_taken_for_a_flood_of_a_library(lines: io.StringIO) -> None:
    for _ in range(3):
        EventLog().info("reloaded")
        logging.getLogger("aiohttp.server").error("Error handling request")
    assert lines.getvalue().count("event=reloaded") == 3
    assert lines.getvalue().count("event=library") == 1


class Unread(io.StringIO):
    """A stream that takes nothing until it is `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.released = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.released.wait(5)
        return super().write(text)


def log_numbers(handler: logging.Handler, *numbers: int) -> None:
    for number in numbers:
        handler.handle(logging.LogRecord("x", logging.INFO, "", 0, f"{number}", None, None))


def test_unread_log_lines_stop_no_one_and_drops_are_counted() -> None:
    stream = Unread()
    handler = WriterHandler(stream)
    handler.setFormatter(KeyValueFormatter())
    log_numbers(handler, 0)
    assert stream.reached.wait(5)
    log_numbers(handler, *range(1, MAX_LINES + 8))
    assert stream.getvalue() == ""
    stream.released.set()
    handler.close()  # what waits is written
    *lines, last = stream.getvalue().splitlines()
    assert [line.rpartition("message=")[2] for line in lines] == [f"{number}" for number in range(MAX_LINES + 1)]
    assert ' event=log_lines_dropped count=7 reason="what reads this log is too slow"' in last
    assert not handler._writing.is_alive()


@pytest.mark.long
def test_closed_log_handler_waits_at_most_2_seconds_for_reader() -> None:
    stream = Unread()
    handler = WriterHandler(stream)
    log_numbers(handler, 1)
    assert stream.reached.wait(5)
    begin = time.monotonic()
    handler.close()
    assert 0.5 < time.monotonic() - begin < 3
    stream.released.set()
    handler._writing.join(5)


def test_log_configured_again_is_written_by_the_same_thread() -> None:
    configure_logging()
    (handler,) = logging.getLogger().handlers
    configure_logging(as_json=True)
    assert logging.getLogger().handlers == [handler]
    assert isinstance(handler, WriterHandler)
    assert isinstance(handler.formatter, JsonFormatter)
    handler.close()


def test_reason_of_a_tls_error_is_not_the_system_s() -> None:
    refused = ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED")
    assert os_error_reason(refused) == "TLS failed: certificate verify failed"
    refused.verify_message = "self-signed certificate"
    assert os_error_reason(refused) == "TLS failed: self-signed certificate"
