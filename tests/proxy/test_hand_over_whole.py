# SPDX-License-Identifier: Apache-2.0
"""What is in force goes to the new process whole, whatever its size; and the old one goes on where that one ends."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from bench.peers import answer_frame, answered, batch_of, request_frame, requested
from tests.proxy.limited import produce
from tests.proxy.test_hand_over import (
    SECONDS,
    Broker,
    Sidecars,
    answer,
    broker,
    change,
    connected,
    read_frame,
    request,
    sidecars,
    without_seconds,
)
from tests.proxy.test_server import throttle_of
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.request_topics import RequestTopic

__all__ = ["broker", "sidecars"]  # fixtures

MOST_STALL = 1.0
LIST = "leader.replication.throttled.replicas"
RATE = "leader.replication.throttled.rate"
LEASE = {"seconds": 3600, "owner": "me", "reason": "adding broker 4"}


@contextmanager
def round_trips(sidecars: Sidecars) -> Iterator[list[float]]:
    """Ask again and again on one connection, and on a new one each time. The list has the times (seconds)."""
    found: list[float] = []
    ended = threading.Event()

    def run() -> None:
        with connected(sidecars) as standing:
            while not ended.is_set():
                for client in (standing, new := connected(sidecars)):
                    begun = monotonic()
                    client.sendall(request(1))
                    assert answer(client) == 1
                    found.append(monotonic() - begun)
                new.close()
                sleep(0.01)
        found.append(-1.0)

    thread = threading.Thread(target=run)
    thread.start()
    yield found
    ended.set()
    thread.join(SECONDS)
    assert found.pop() == -1.0, "a connection was broken"


def child_of(process: int) -> int | None:
    """Return the process that `process` has started; None where there is none yet."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        if children := task.read_text().split():
            return int(children[0])
    return None


@pytest.mark.long
@pytest.mark.parametrize("topics", [1, 20_000])
def test_lists_of_any_size_are_in_force_in_the_new_process(sidecars: Sidecars, topics: int) -> None:
    """Seven thousand partitions in one list; and two lists in each of 20,000 topics."""
    partitions = range(7000 if topics == 1 else 2)
    long = ",".join(f"{partition}:{replica}" for partition in partitions for replica in (1, 102, 103))
    both = {LIST: long, LIST.replace("leader", "follower"): long}
    for first in range(0, topics, 5000):
        body = {f"topic-{number}": both for number in range(first, min(topics, first + 5000))}
        change(sidecars, "PATCH", "/v1/throttle", {RATE: 5, "topics": body, "lease": LEASE})
    before = throttle_of(sidecars.admin)
    with round_trips(sidecars) as times:
        sleep(0.2)
        sidecars.hand_over()
        sidecars.first.until("event=handing_over")
        sidecars.taken_over()
        sleep(0.2)
    assert max(times) < MOST_STALL
    assert without_seconds(throttle_of(sidecars.admin)) == without_seconds(before)


@pytest.mark.long
def test_what_hundreds_of_clients_owe_is_owed_to_the_new_process(sidecars: Sidecars) -> None:
    """Seven hundred names of 200 letters are too many for one packet."""
    names = [f"connector-producer-{'x' * 200}-{number:03}" for number in range(700)]
    change(sidecars, "PATCH", "/v1/limits", {"client": [{"client_id": "connector-*", "record.rate.limit": 10}]})
    with connected(sidecars) as client:
        begin, first = monotonic(), produce(1, 150, client_id=names[0])
        for name in names:
            client.sendall(first.replace(names[0].encode(), name.encode()))
            assert answer(client) == 1
    sidecars.hand_over()
    sidecars.taken_over()
    with connected(sidecars) as one, connected(sidecars) as other:
        for client, name in ((one, names[0]), (other, names[-1])):
            client.sendall(produce(2, 1, client_id=name))
        for client in (one, other):
            assert answer(client) == 2
            assert monotonic() - begin > 14.9


@pytest.mark.long
def test_change_that_is_answered_with_200_is_in_force_afterwards(sidecars: Sidecars, broker: Broker) -> None:
    """Changes come on a connection that is kept alive, while a request under way keeps the old process from ending."""
    done, refused = set[str](), 0
    connection = http.client.HTTPConnection("127.0.0.1", sidecars.admin, timeout=SECONDS)
    with connected(sidecars) as waiting:
        broker.go_on.clear()
        waiting.sendall(request(1))
        sleep(0.1)
        end = monotonic() + 4
        for number in itertools.count():
            topic, begun = f"topic-{number}", monotonic()
            if begun > end:
                break
            if number == 10:
                sidecars.hand_over()
            body = {"topics": {topic: {LIST: "*"}}}
            connection.request("PATCH", "/v1/throttle", json.dumps(body), {"Content-Type": "application/json"})
            answered = connection.getresponse()
            told = answered.read()
            assert monotonic() - begun < MOST_STALL
            if answered.status == 200:
                done.add(topic)
            else:
                assert (answered.status, b"new process" in told) == (503, True)
                refused += 1
            sleep(0.01)
        broker.go_on.set()
        assert answer(waiting) == 1
    connection.close()
    sidecars.taken_over()
    in_force = throttle_of(sidecars.admin)["topics"]
    assert isinstance(in_force, dict)
    assert set(in_force) == done
    assert refused
    assert len(done) > 100


@pytest.mark.long
@pytest.mark.parametrize("wait", [0.05, 0.7, 1.2, None])
def test_old_process_goes_on_where_the_new_one_is_killed(
    sidecars: Sidecars, broker: Broker, wait: float | None
) -> None:
    """While it starts, while it takes what is in force, and when it lacks only a link with a request under way."""
    change(sidecars, "PATCH", "/v1/throttle", {RATE: 5})
    with connected(sidecars) as waiting:
        waiting.sendall(request(1))
        assert answer(waiting) == 1
        broker.go_on.clear()
        waiting.sendall(request(2))
        sidecars.hand_over()
        begun = monotonic()
        while (new := child_of(sidecars.first.child.pid)) is None:
            assert monotonic() - begun < SECONDS
        if wait is None:
            sidecars.first.until("event=handing_over")
        else:
            sleep(wait)
        os.kill(new, signal.SIGKILL)
        sidecars.first.until("event=not_handed_over")
        broker.go_on.set()
        assert answer(waiting) == 2
    with connected(sidecars) as client:
        client.sendall(request(3))
        assert answer(client) == 3
    change(sidecars, "PATCH", "/v1/throttle", {RATE: 7})
    sidecars.hand_over()
    sidecars.taken_over()
    assert throttle_of(sidecars.admin)[RATE] == 7


@pytest.mark.long
def test_batches_larger_than_the_quota_keep_to_it_through_three_upgrades(tmp_path: Path, broker: Broker) -> None:
    """What a batch of two seconds of quota owes is paid by the next process."""
    rate, batch = 1_000_000, 2_000_000
    row = FETCH_VERSIONS[3]
    partition = answered(row, 0, 10**9, batch_of(batch))
    broker.answers[struct.pack(">i", 77)] = answer_frame(row, 77, [(b"t", [partition])])
    throttle = f'[throttle]\n"{RATE}" = {rate}\n[throttle.topics.t]\n"{LIST}" = "*"\n'
    sidecars = Sidecars(tmp_path, broker, throttle)
    received = offset = 0

    def upgrade() -> None:
        for _ in range(3):
            sleep(2)
            sidecars.hand_over()
            sidecars.taken_over()

    upgrades = threading.Thread(target=upgrade)
    try:
        begin = monotonic()
        upgrades.start()
        with connected(sidecars) as follower:
            while upgrades.is_alive() or monotonic() < begin + 9:
                asked = RequestTopic(b"t", requested(row, 0, offset, batch), row.partition_size)
                follower.sendall(request_frame(row, 77, [asked]))
                if len(read_frame(follower)) > batch:
                    received, offset = received + batch, offset + 1
        assert received <= 1.1 * rate * (monotonic() - begin) + batch
        assert received > 3 * batch
    finally:
        upgrades.join()
        sidecars.close()
