# SPDX-License-Identifier: Apache-2.0
"""What a neighbour, a browser or a client gone mad can do to a sidecar: `python -m bench.tries`.

Each try is made on a sidecar of its own, which `weir run` starts, with scripted peers on loopback. docs/security.md has
the list of what was tried; what attacks cost other clients is measured by `bench.attacks`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import signal
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.attack_peers import HOSTILE, NICENESS, fetch_frame
from bench.peers import BATCH_BYTES, Follower, Leader, answer_frame, answered
from bench.processes import Sidecar, calling, next_line, serving, sidecar, throttled
from bench.sockets import Broker, Fetcher, connect, metadata_request, receive_frame, serve_with
from bench.table import begin, parser, run, with_trees
from weir.protocol.fetch_request import decode_fetch_request
from weir.protocol.fetch_versions import FETCH_VERSIONS

HARMFUL = ("os.fork", "signal.pause", "os.abort")  # each leaves a trace that is seen from here
DOUBLED_KEYS = 12_000  # some 140 KB
WRONG_TOKENS = 15
RATE = 1_000_000
LEAST_RATE = 0.9  # of the quota, for the broker that is served
FIRST_REFUSED_ID = 1000  # whose fetches the broker answers with an error
MOST_MS = 50.0  # of another client's answer, on a machine whose cores are all taken
ANSWER_SECONDS = 3.0
ASKED = 30
WARM_UP_SECONDS, MEASURED_SECONDS = 3.0, 8.0
TOPIC = b"t"

_ROW = FETCH_VERSIONS[3]
_REFUSED = struct.pack(">h", 29)  # TOPIC_AUTHORIZATION_FAILED
_TOKEN = "the-right-token-of-a-try"  # noqa: S105
_JSON = {"Content-Type": "application/json"}
_EVIL = "http://evil.example"


class Outcome(NamedTuple):
    """What was seen, and whether what must hold has held."""

    seen: str
    held: bool


class Try(NamedTuple):
    """What is done, what must hold, and what does it to sidecars of a checkout."""

    done: str
    must_hold: str
    make: Callable[[Path], Outcome]


def _call(
    admin: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}, seconds: float = 5.0
) -> int | None:
    """The status of an answer; None: there was none."""
    connection = http.client.HTTPConnection("127.0.0.1", admin, timeout=seconds)
    try:
        connection.request(method, path, body or None, dict(headers))
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@contextlib.contextmanager
def _tried(tree: Path, *, tables: str = "", admin: str = "", upstream: str = "sockets.serve") -> Iterator[Sidecar]:
    with serving(upstream) as port, sidecar(port, tables=tables, admin=admin, tree=tree) as found:
        yield found


def _children(pid: int) -> list[int]:
    """The processes that a process has forked, wherever its threads did."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def name_limiters(tree: Path) -> Outcome:
    """Each name on a sidecar of its own: what it does is to be seen alone."""
    seen = []
    for name in HARMFUL:
        body = json.dumps({"client": [{"client_id": "a", "rate.limiters": [name]}]}).encode()
        with _tried(tree) as found:
            assert found.process is not None
            before = set(_children(found.process.pid))
            _call(found.admin, "PATCH", "/v1/limits", body, _JSON, 2.0)
            forked = set(_children(found.process.pid)) - before
            for pid in forked:  # it holds the listeners, and would outlive this
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if forked:
                seen.append(f"{name} ran: a child")
            elif found.process.poll() is not None:
                seen.append(f"{name} ran: the process ended")
            elif _call(found.admin, "GET", "/healthz", seconds=2.0) != 200:
                seen.append(f"{name} ran: it hangs")
                found.process.kill()
    return Outcome("; ".join(seen) or f"refused: {', '.join(HARMFUL)}", not seen)


def post_from_a_page(tree: Path) -> Outcome:
    """What a browser sends for a page of another site without asking first: a simple request."""
    simple = {"Content-Type": "text/plain", "Origin": _EVIL}
    shares = b'{"broker_id":2,"rates":[]}'
    calls = {"/v1/shares": shares, "/v1/capture/pause": b'{"seconds":86400}', "/v1/capture/resume": b""}
    with _tried(tree) as found:
        statuses = {path: _call(found.admin, "POST", path, body, simple) for path, body in calls.items()}
        typed = {**_JSON, "Origin": _EVIL}
        rebound = {"Host": "evil.example", **_JSON}
        statuses["PATCH /v1/throttle"] = _call(found.admin, "PATCH", "/v1/throttle", b"{}", typed)
        statuses["Host: evil.example"] = _call(found.admin, "PATCH", "/v1/throttle", b"{}", rebound)
    held = all(status in (403, 415, 421) for status in statuses.values())
    return Outcome(", ".join(f"{path} {status}" for path, status in statuses.items()), held)


def double_a_key(tree: Path) -> Outcome:
    """One key of many is there twice, at the end."""
    names = [f'"k{number}":1' for number in range(DOUBLED_KEYS)]
    body = f"{{{','.join([*names, names[-1]])}}}".encode()
    with _tried(tree) as found:
        began = time.monotonic()
        status = _call(found.admin, "PATCH", "/v1/throttle", body, _JSON, 60.0)
        seconds = time.monotonic() - began
    return Outcome(f"{len(body) // 1000} KB: {status} after {seconds:.2f} s", status == 400 and seconds < 1.0)


def give_wrong_tokens(tree: Path) -> Outcome:
    """Wrong ones, then the right one, from the same address."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "token"
        file.write_text(_TOKEN)
        file.chmod(0o600)
        with _tried(tree, admin=f'write_token_file = "{file}"\n') as found:
            wrong = {"Authorization": "Bearer a-wrong-token-of-a-try"}
            refused = [
                _call(found.admin, "PATCH", "/v1/throttle", b"{}", {**_JSON, **wrong}) for _ in range(WRONG_TOKENS)
            ]
            right = {"Authorization": f"Bearer {_TOKEN}"}
            status = _call(found.admin, "PATCH", "/v1/throttle", b"{}", {**_JSON, **right})
    told = sorted({str(one) for one in refused})
    return Outcome(f"{WRONG_TOKENS} wrong: {' and '.join(told)}; right: {status}", status == 200 and "200" not in told)


class _Refusing(Broker):
    """A broker that answers the fetches of some ids with an error, and those of others as a leader."""

    def __init__(self) -> None:
        super().__init__(_RefusingLeader())


class _RefusingLeader(Leader):
    def __init__(self) -> None:
        super().__init__(BATCH_BYTES)

    def answer(self, frame: bytes) -> bytes:
        request = decode_fetch_request(frame)
        if request.replica_id < FIRST_REFUSED_ID:
            return super().answer(frame)
        partition = answered(_ROW, 0, -1, b"")
        partition = partition[:4] + _REFUSED + partition[6:]
        return answer_frame(_ROW, request.header.correlation_id, [(TOPIC, [partition])])


def serve_refusing() -> None:
    """Print a free port, and be such a broker there until killed."""
    serve_with(_Refusing)


def ask_refused(port: int, count: int) -> None:
    """Fetch for ever with so many ids that the broker refuses; print `ready` first."""
    os.nice(NICENESS)  # it is turns that they take, and not the machine's cores
    selector = selectors.EpollSelector()
    for number in range(count):
        one = connect(port)
        one.sendall(fetch_frame(1, TOPIC, 1, FIRST_REFUSED_ID + number))
        selector.register(one, selectors.EVENT_READ, FIRST_REFUSED_ID + number)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            receive_frame(key.fileobj)
            key.fileobj.sendall(fetch_frame(1, TOPIC, 1, key.data))


def _refused_ids(count: int) -> Callable[[Path], Outcome]:
    def make(tree: Path) -> Outcome:
        tables = throttled(RATE, [TOPIC])
        with contextlib.ExitStack() as stack:
            found = stack.enter_context(_tried(tree, tables=tables, upstream="tries.serve_refusing"))
            next_line(stack.enter_context(calling("tries.ask_refused", found.port, count)))
            rate = _rate_of_a_broker(found.port)
        return Outcome(f"{rate / RATE:.2f} of the quota", rate >= LEAST_RATE * RATE)

    return make


def _rate_of_a_broker(port: int) -> float:
    """Bytes/s of record data that a broker behind the high watermark receives."""
    fetcher = Fetcher(port, Follower(3, [(TOPIC, 0)]))
    selector = selectors.EpollSelector()
    selector.register(fetcher.connection, selectors.EVENT_READ)
    began = time.monotonic()
    while (now := time.monotonic()) < began + WARM_UP_SECONDS + MEASURED_SECONDS:
        if selector.select(0.1):
            fetcher.go_on(now)
    fetcher.connection.close()
    return sum(size for at, size in fetcher.received if at >= began + WARM_UP_SECONDS) / MEASURED_SECONDS


def _attacked(name: str) -> Callable[[Path], Outcome]:
    def make(tree: Path) -> Outcome:
        limit = f'[[limits.client]]\nclient_id = "{HOSTILE.decode()}"\n"record.rate.limit" = 1_000_000_000\n'
        with contextlib.ExitStack() as stack:
            quiet = stack.enter_context(serving("sockets.serve"))
            noisy = stack.enter_context(serving("sockets.serve", 0, NICENESS))
            found = stack.enter_context(sidecar(quiet, noisy, tables=limit, tree=tree))
            next_line(stack.enter_context(calling("attack_peers.attack", name, found.ports[1], found.admin)))
            median = statistics.median(_answer_times(found.port))
        if median >= ANSWER_SECONDS:
            return Outcome(f"another client had no answer in {ANSWER_SECONDS:g} s", held=False)
        words = f"half of another client's answers within {1000 * median:.0f} ms"
        return Outcome(words, 1000 * median <= MOST_MS)

    return make


def _answer_times(port: int) -> list[float]:
    """Seconds until each of some requests was answered; who waited for ANSWER_SECONDS waits no longer."""
    found: list[float] = []
    time.sleep(1.0)  # until the attack is under way
    while sum(found) < 2 * ANSWER_SECONDS and len(found) < ASKED:
        time.sleep(0.1)
        began = time.monotonic()
        with connect(port) as client, contextlib.suppress(TimeoutError):
            client.settimeout(ANSWER_SECONDS)
            client.sendall(metadata_request(len(found), 64))
            receive_frame(client)
        found.append(time.monotonic() - began)
    return found


TAGS, FORGOTTEN = "40 clients, 2^31 tags each", "8 clients, 50,000 forgotten topics each"
TRIES = (
    Try("limiters named over HTTP", "none is run", name_limiters),
    Try("requests of a foreign page", "403, 415 or 421", post_from_a_page),
    Try("a body with a doubled key", "400 within 1 s", double_a_key),
    Try("wrong tokens, then the right one", "only the right one passes, at once", give_wrong_tokens),
    Try("3 ids that the broker refuses", f"the served broker has {LEAST_RATE:g} of the quota", _refused_ids(3)),
    Try("40 ids that the broker refuses", f"the served broker has {LEAST_RATE:g} of the quota", _refused_ids(40)),
    Try(TAGS, f"median within {MOST_MS:g} ms", _attacked(TAGS)),
    Try(FORGOTTEN, f"median within {MOST_MS:g} ms", _attacked(FORGOTTEN)),
)


def main() -> int:
    """Make each try and print what was seen; 1 when something that must hold has not."""
    options = parser("tries", "Try what strangers, pages and clients gone mad can do to a sidecar.", trees=True)
    options.add_argument("--only", default="", help="tries whose words have this")
    chosen, report = begin(options)

    def made() -> Iterator[tuple[str, str, str, str]]:
        for one, tree, label in with_trees([one for one in TRIES if chosen.only in one.done], chosen.tree):
            seen, held = one.make(tree)
            report.status |= not held
            yield f"{one.done}{label}", seen, one.must_hold, "held" if held else "MISSED"

    report.table("Tries", "done | seen | must hold | result", made())
    return report.status


if __name__ == "__main__":
    run(main)
