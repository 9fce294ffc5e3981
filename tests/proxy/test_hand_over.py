# SPDX-License-Identifier: Apache-2.0
"""A sidecar hands over to a new process of it: connections go on, and what cannot begin changes nothing."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.proxy.limited import SINK, SOURCE, fetch, fetched, produce
from tests.proxy.test_server import Process, throttle_of
from tests.sample_files import lines_in
from weir.lab.network import Ports
from weir.samples.schema import IntervalLine, LimitLine

SECONDS = 20
_SIZE = struct.Struct(">i")


class Broker:
    """Answers each request by `answers`, or with its correlation id; `go_on` keeps answers back until it is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.connections = 0
        self.answers: dict[bytes, bytes] = {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while frame := read_frame(connection):
                self.go_on.wait(SECONDS)
                connection.sendall(self.answers.get(frame[4:8], _SIZE.pack(8) + frame[4:8] + b"done"))

    def close(self) -> None:
        self.go_on.set()
        self._listening.close()


def read_frame(connection: socket.socket) -> bytes:
    size = _exactly(connection, 4)
    return _exactly(connection, _SIZE.unpack(size)[0]) if size else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (more := connection.recv(size - len(found))):
            return b""
        found += more
    return found


def request(number: int) -> bytes:
    """Return an ApiVersions request v0."""
    return _SIZE.pack(14) + struct.pack(">hhih", 18, 0, number, 4) + b"test"


def answer(client: socket.socket) -> int:
    frame = read_frame(client)
    assert frame[4:] == b"done"
    return int(_SIZE.unpack(frame[:4])[0])


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.close()


class Sidecars:
    """A sidecar of `broker`, and those that take over from it."""

    def __init__(self, folder: Path, broker: Broker, tables: str = "") -> None:
        with Ports() as ports:
            self.port, self.admin = ports.take(), ports.take()
        self.file = folder / "weir.toml"
        self.text = (
            f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:{self.port}"\nupstream = "127.0.0.1:{broker.port}"\n'
            f'[admin]\nlisten = "127.0.0.1:{self.admin}"\n{tables}'
        )
        self.first = Process(self.file, self.text)
        self.pids: list[int] = []
        self.first.until("role=admin")

    def hand_over(self) -> None:
        os.kill(self.pids[-1] if self.pids else self.first.child.pid, signal.SIGUSR2)

    def taken_over(self) -> str:
        line = self.first.until("event=taken_over")
        found = re.search(r"pid=(\d+)", line)
        assert found is not None
        self.pids.append(int(found[1]))
        return line

    def end(self) -> None:
        """End the last one as `systemctl stop` does."""
        os.kill(self.pids[-1], signal.SIGTERM)
        self.first.until_ended()

    def close(self) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.first.kill()


@pytest.fixture
def sidecars(tmp_path: Path, broker: Broker) -> Iterator[Sidecars]:
    sidecars = Sidecars(tmp_path, broker)
    yield sidecars
    sidecars.close()


def connected(sidecars: Sidecars) -> socket.socket:
    return socket.create_connection(("127.0.0.1", sidecars.port), timeout=SECONDS)


@pytest.mark.long
def test_connections_go_on_and_new_ones_are_taken(sidecars: Sidecars, broker: Broker) -> None:
    with connected(sidecars) as idle, connected(sidecars) as waiting:
        for client in (idle, waiting):
            client.sendall(request(1))
            assert answer(client) == 1
        broker.go_on.clear()
        waiting.sendall(request(2) + request(3)[:9])  # one in flight, and the beginning of another one
        sidecars.hand_over()
        sidecars.first.until("event=handing_over")
        idle.sendall(request(4))
        broker.go_on.set()
        assert answer(waiting) == 2
        waiting.sendall(request(3)[9:])
        assert answer(waiting) == 3
        assert answer(idle) == 4
        assert "connections=2" in sidecars.taken_over()
        assert sidecars.first.child.wait(SECONDS) == 0
        with connected(sidecars) as new:
            for client in (idle, waiting, new):
                client.sendall(request(5))
                assert answer(client) == 5


@pytest.mark.long
def test_new_process_refusing_its_file_leaves_the_old_as_it_was(sidecars: Sidecars) -> None:
    with connected(sidecars) as client:
        client.sendall(request(1))
        assert answer(client) == 1
        sidecars.file.write_text(sidecars.text + "made_up = 1\n")
        sidecars.hand_over()
        sidecars.first.until("event=not_handed_over")
        client.sendall(request(2))
        assert answer(client) == 2
        assert throttle_of(sidecars.admin) == {"topics": {}, "sources": {}, "layers": []}


@pytest.mark.long
def test_new_process_ends_with_the_old_one_if_stopped_early(sidecars: Sidecars) -> None:
    """The old one is stopped before the new one could begin."""
    sidecars.hand_over()
    assert sidecars.first.end(signal.SIGTERM) == 0
    words = str(sidecars.file).encode()
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [line for line in lines if words in line]


@pytest.mark.long
def test_what_http_has_set_goes_on_and_ends_with_its_lease(sidecars: Sidecars) -> None:
    lease = {"seconds": 3600, "owner": "me", "reason": "adding broker 4"}
    rate, lists = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
    quota = {"name": "slow", "side": "leader", "rate": 5, "peers": [2]}
    change(sidecars, "PATCH", "/v1/throttle", {rate: 7, "topics": {"a.b": {lists: "0:1"}}, "lease": lease})
    change(sidecars, "PATCH", "/v1/throttle", {"quotas": [quota], "mode": "observe"})
    limit = {"client_id": "mine", "byte.rate.limit": 5000}
    change(sidecars, "PATCH", "/v1/limits", {"client": [limit], "lease": lease})
    throttled, limited = throttle_of(sidecars.admin), ask(sidecars, "GET", "/v1/limits")
    sidecars.hand_over()
    sidecars.taken_over()
    sidecars.first.child.wait(SECONDS)
    assert without_seconds(throttle_of(sidecars.admin)) == without_seconds(throttled)
    assert without_seconds(ask(sidecars, "GET", "/v1/limits")) == without_seconds(limited)
    change(sidecars, "DELETE", "/v1/throttle")
    sidecars.hand_over()
    sidecars.taken_over()
    assert throttle_of(sidecars.admin)["layers"] == [{"source": "http", "parts": [{"part": "*", "removed": True}]}]


def ask(sidecars: Sidecars, method: str, path: str, body: object = None) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", sidecars.admin, timeout=SECONDS)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    answered = connection.getresponse()
    text = answered.read()
    connection.close()
    assert answered.status == 200, text
    told: dict[str, object] = json.loads(text)
    return told


def change(sidecars: Sidecars, method: str, path: str, body: object = None) -> None:
    ask(sidecars, method, path, body)


def without_seconds(told: object) -> object:
    """What an answer says, without how many seconds are left, of which there have to be some."""
    if isinstance(told, dict):
        assert 3500 < told.get("expires_in_seconds", 3600) <= 3600
        return {key: without_seconds(value) for key, value in told.items() if key != "expires_in_seconds"}
    return [without_seconds(one) for one in told] if isinstance(told, list) else told


def limited(sidecars: Sidecars, owed: int) -> socket.socket:
    """Have a producer move so many records at 100/s; returns its connection."""
    change(sidecars, "PATCH", "/v1/limits", {"client": [{"client_id": SOURCE, "record.rate.limit": 100}]})
    client = connected(sidecars)
    client.sendall(produce(1, owed))
    assert answer(client) == 1
    return client


@pytest.mark.long
def test_what_a_limited_client_owes_is_owed_to_the_new_process(sidecars: Sidecars) -> None:
    """On the connection that was held, on one that was idle, and on one that comes."""
    with limited(sidecars, 1200) as held, connected(sidecars) as idle:
        begin = monotonic()
        idle.sendall(request(1))
        assert answer(idle) == 1
        held.sendall(produce(2, 1))
        sidecars.hand_over()
        sidecars.taken_over()
        assert monotonic() - begin < 11
        with connected(sidecars) as new:
            for client in (idle, new):
                client.sendall(produce(3, 1))
            for client in (held, idle, new):
                assert answer(client) in (2, 3)
                assert monotonic() - begin > 11.8


@pytest.mark.long
def test_hand_over_holds_no_produce_longer_than_without_one(sidecars: Sidecars) -> None:
    """Its producer would give it up, and send it again."""
    with limited(sidecars, 2500) as client:
        begin = monotonic()
        client.sendall(produce(2, 1, timeout_ms=16_000) + produce(3, 1, timeout_ms=16_000))
        sleep(1)
        sidecars.hand_over()
        sidecars.taken_over()
        assert monotonic() - begin < 11
        for number in (2, 3):
            assert answer(client) == number
            assert 11.9 < monotonic() - begin < 13  # three quarters of its timeout


@pytest.mark.long
def test_a_fetch_that_was_held_is_answered_in_time(sidecars: Sidecars) -> None:
    """kafka-go takes none within a third more than its max_wait_ms for a lost one."""
    with limited(sidecars, 2500) as client:
        begin = monotonic()
        client.sendall(fetch(2, 11, client_id=SOURCE, session=(0, -1), max_wait_ms=12_000, partitions=[0]))
        sleep(1)
        sidecars.hand_over()
        sidecars.taken_over()
        assert monotonic() - begin < 11
        assert read_frame(client)[:4] == _SIZE.pack(2)
        assert 11.9 < monotonic() - begin < 13


@pytest.mark.long
def test_an_answer_under_way_passes_counts_and_is_paid_for_once(tmp_path: Path, broker: Broker) -> None:
    """Its first bytes pass before the hand-over, the others after it; so it is with the bytes in samples."""
    folder = tmp_path / "samples"
    sidecars = Sidecars(tmp_path, broker, f'[export]\ndirectory = "{folder}"\ninterval_seconds = 60\n')
    try:
        change(sidecars, "PATCH", "/v1/limits", {"client": [{"client_id": SINK, "record.rate.limit": 1000}]})
        large = broker.answers[_SIZE.pack(1)] = fetched(1, 3000, size=3000)
        with connected(sidecars) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)  # the systems keep less than half of it
            client.sendall(fetch(1))
            first = _exactly(client, 1000)
            sidecars.hand_over()
            sidecars.first.until("event=handing_over connections=1")
            client.sendall(fetch(2))
            begin = monotonic()
            assert first + _exactly(client, len(large) - len(first)) == large
            passed = monotonic()
            sidecars.taken_over()
            assert answer(client) == 2
            assert begin + 2.9 < monotonic() < passed + 4.5
        sidecars.end()
        lines = lines_in(folder)
        limits = [line for line in lines if isinstance(line, LimitLine)]
        intervals = [line for line in lines if isinstance(line, IntervalLine)]
        assert [line.records for line in limits if line.records] == [3000]
        assert sum(line.client_bytes_in or 0 for line in intervals) == len(fetch(1) + fetch(2))
        assert sum(line.client_bytes_out or 0 for line in intervals) == len(large) + 12
    finally:
        sidecars.close()
