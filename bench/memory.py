# SPDX-License-Identifier: Apache-2.0
"""How much memory a sidecar takes: `python -m bench.memory`.

- `come-and-go`: whether it levels out while connections come and go, one after the other, as fast as they are served.
  They are of all kinds: followers of ten brokers at several versions, each with topics that differ from the last one's;
  consumers; half a frame; and garbage. `--minutes 60` takes an hour.
- `stuck`, `late`, `clients`: the most that it takes where peers do their worst, and what stays when they have gone.
  Followers ask for answers that may be held whole, and read nothing; or their leader never sends the answers' ends; or
  clients of any kind read nothing.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from bench.attack_peers import THROTTLED, fetch_frame
from bench.peers import Follower, Leader, keys_of
from bench.processes import Sidecar, serving, sidecar, throttled
from bench.sockets import Broker, connect, metadata_request, receive_frame, serve_with
from bench.table import Report, add_parts, begin, parser, progress, run, with_trees
from weir.proxy.collector import CHECK_SECONDS
from weir.proxy.event_loop import raise_descriptor_limit

MOST_GROWTH_MB = 10.0  # from the half of the time on
ROWS = 12
TOPICS = 20_000
TOPICS_EACH = 500
THROTTLED_TOPICS = 2_000  # of all
VERSIONS = (3, 7, 12, 18)
CONSUMER = -1
REPLICAS = (*range(5, 15), CONSUMER)
SPOILT = 0.1  # of all connections: half a frame, or garbage
FETCHES = 3

MOST_MB = 320.0  # at the worst, as docs/performance.md tells
MOST_LEFT_MB = 50.0  # above what it had before
EVERYTHING = throttled(10**10)
MAX_BYTES = 900_000
"""What a follower asks for: an answer that is not too large to be held."""

SMALLEST_WINDOW = 4096
SETTLES_SECONDS = 4.0
LATE_BYTES = 100


class _Worst(NamedTuple):
    """So many peers, each of which sends requests, with the answers to all but the last one read, from that leader."""

    peers: int
    requests: Callable[[int], tuple[bytes, ...]]
    leader: str = "sockets.serve"


def _fetches(number: int) -> tuple[bytes, ...]:
    """The first tells where the partition ends, the second has a grant."""
    return tuple([fetch_frame(one, THROTTLED, 1, 2 + number, max_bytes=MAX_BYTES) for one in (1, 2)])


def _listings(number: int) -> tuple[bytes, ...]:
    """Some answers of 1 MB."""
    return (b"".join(metadata_request(one, 10**6) for one in range(10)),)


WORST: Final = {
    "stuck": _Worst(1030, _fetches),
    "late": _Worst(700, _fetches, "memory.serve_late"),
    "clients": _Worst(3500, _listings),
}
COME_AND_GO = "come-and-go"


def main() -> int:
    """Measure and print; 1 when memory goes on to grow, is more than is told, or is not given back."""
    options = parser("memory", "Measure a sidecar's memory.", trees=True)
    options.add_argument("--minutes", type=float, default=5.0, help=f"how long to {COME_AND_GO} (5)")
    add_parts(options, (*WORST, COME_AND_GO))
    chosen, report = begin(options)
    raise_descriptor_limit()
    if cases := [name for name in WORST if name in chosen.parts]:
        columns = "peers | number | before, MB .1 | at the most .1 | when they have gone .1"
        report.table("Memory where peers do their worst", columns, _worst(report, cases, chosen.tree))
    if COME_AND_GO in chosen.parts:
        _come_and_go(report, chosen.minutes, chosen.tree)
    return report.status


def serve_late() -> None:
    """Be a leader whose answers, but for the first one of each connection, never end."""

    def new_answer() -> Callable[[bytearray], bytearray]:
        broker, answers = Broker(Leader()), 0

        def answer(unread: bytearray) -> bytearray:
            nonlocal answers
            out = broker(unread)
            answers += bool(out)
            return out[:-LATE_BYTES] if answers > 1 else out

        return answer

    serve_with(new_answer)


def _worst(report: Report, cases: Sequence[str], trees: Sequence[Path]) -> Iterator[Sequence[object]]:
    for name, tree, label in with_trees(cases, trees):
        case = WORST[name]
        with serving(case.leader) as leader, sidecar(leader, tables=EVERYTHING, tree=tree) as between:
            before = between.resident_mb()
            peers = [_peer(between.port, case.requests(number)) for number in range(case.peers)]
            time.sleep(SETTLES_SECONDS)
            most = between.resident_mb(most=True)
            for peer in peers:
                peer.close()
            time.sleep(3 * CHECK_SECONDS)
            left = between.resident_mb()
        report.bound(f"memory with {name}{label}, MB", most, most=MOST_MB)
        report.bound(f"what stays of {name}{label}, MB", left - before, most=MOST_LEFT_MB)
        yield f"{name}{label}", case.peers, before, most, left


def _peer(port: int, requests: tuple[bytes, ...]) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALLEST_WINDOW)
    peer.connect(("127.0.0.1", port))
    *read, last = requests
    for request in read:
        peer.sendall(request)
        receive_frame(peer)
    peer.sendall(last)
    return peer


def _come_and_go(report: Report, minutes: float, trees: Sequence[Path]) -> None:
    tables = throttled(1_000_000, [name for name, _ in keys_of(THROTTLED_TOPICS, 1)])
    for length, tree, label in with_trees([minutes], trees):
        with serving("sockets.serve", 0) as leader, sidecar(leader, tables=tables, tree=tree) as between:
            rows = list(_measure(between, 60 * length))
        report.table(f"Memory while connections come and go{label}", "minutes .1 | connections | RSS, MB .1", rows)
        half, *later = [resident for _, _, resident in rows[ROWS // 2 - 1 :]]
        report.bound(f"growth in the second half of the time, MB{label}", max(later) - half, most=MOST_GROWTH_MB)


def _measure(between: Sidecar, seconds: float) -> Iterator[tuple[float, int, float]]:
    draws, keys, start, count = random.Random(1), keys_of(TOPICS, 1), time.monotonic(), 0
    for row in range(1, ROWS + 1):
        while (passed := time.monotonic() - start) < seconds * row / ROWS:
            _one(between.port, draws, keys)
            count += 1
        resident = between.resident_mb()
        progress(f"{passed / 60:.1f} minutes, {count} connections, {resident:.1f} MB")
        yield passed / 60, count, resident


def _one(port: int, draws: random.Random, keys: Sequence[tuple[bytes, int]]) -> None:
    """One connection, which ends without a word."""
    first = draws.randrange(len(keys) - TOPICS_EACH)
    version, replica = draws.choice(VERSIONS), draws.choice(REPLICAS)
    follower = Follower(version, keys[first : first + TOPICS_EACH], replica_id=replica)
    with connect(port) as connection:
        if draws.random() < SPOILT:
            request = follower.request()
            connection.sendall(draws.choice((request[: len(request) // 2], draws.randbytes(100))))
            return
        with suppress(ConnectionError):
            for _ in range(draws.randint(1, FETCHES)):
                connection.sendall(follower.request(is_full=True))
                receive_frame(connection)


if __name__ == "__main__":
    run(main)
