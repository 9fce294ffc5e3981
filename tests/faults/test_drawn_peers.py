# SPDX-License-Identifier: Apache-2.0
"""A real `weir run` between scripted peers: what is drawn from a seed happens, and the quota is kept and used.

A follower counts what arrives. Two happenings meet in each run, as most faults need two. A seed that fails is run again
with `pytest -k <seed>`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest

from bench import peers
from bench.peers import keys_of
from bench.processes import free_port
from tests.fakes.conversation import worst_second
from weir.protocol.fetch_request import decode_fetch_request
from weir.protocol.header import FETCH
from weir.protocol.response_scanner import Expected, FetchResponseScanner

pytestmark = pytest.mark.long

QUOTA: Final = 1_000_000
MOVED, LIVE = keys_of(2, 1)
WARM_SECONDS: Final = 1.5
SECONDS: Final = 3.0
LIVE_SECONDS: Final = 0.1  # from one record in sync to the next
SEEDS: Final = (18, 22, 83)
BUSY: Final = 0.08  # of quota: what arrives late on a busy machine counts in a later second
LEAST_USE: Final = 0.8
LONGEST_WAIT: Final = 1.3  # seconds: 1 s, and a busy machine

SIDES: Final = ("ingress", "egress", "both")
VERSIONS: Final = (3, 5, 7, 12, 13, 18)
BATCHES: Final = (2_000, 10_000, 60_000)
HAPPENINGS: Final = (
    "rates change",
    "all settings are put",
    "reloads",
    "small answers",
    "late answers",
    "connects anew",
    "begins anew",
    "sends ahead",
    "pauses",
)
IDLES: Final = frozenset({"connects anew", "pauses"})  # a part of the quota is lost with these
PAUSE_SECONDS: Final = 1.2
AHEAD: Final = 6


@dataclass(frozen=True)
class Drawn:
    """What one run is made of."""

    side: str
    version: int
    batch: int
    followers: int
    happenings: tuple[str, ...]

    @classmethod
    def of(cls, seed: int) -> Drawn:
        """The run of a seed."""
        draw = random.Random(seed)
        happenings = tuple(sorted(draw.sample(HAPPENINGS, 2)))
        # with sessions only one fetch can be under way
        version = draw.choice(VERSIONS[:2] if "sends ahead" in happenings else VERSIONS)
        return cls(draw.choice(SIDES), version, draw.choice(BATCHES), draw.choice((1, 2, 5)), happenings)

    @property
    def most(self) -> float:
        """The most bytes in a second: on the follower's side a late answer may come on top of others."""
        if self.side == "egress":
            return (1.16 + BUSY) * QUOTA + self.followers * self.batch
        return (1.04 + BUSY) * QUOTA + self.batch

    def settings(self, variant: int = 0) -> dict[str, Any]:
        """The throttle, in words that differ and mean the same."""
        lists = ["*", "0:1,0:2"][variant % 2]
        names = ["leader.replication.throttled", "follower.replication.throttled"]
        topics = {MOVED[0].decode(): {f"{name}.replicas": lists for name in names}}
        return {**{f"{name}.rate": QUOTA for name in names}, "topics": topics}


@dataclass
class Run:
    """One run: its sidecars, its leader, and what has arrived."""

    drawn: Drawn
    folder: Path
    arrived: list[tuple[float, int]] = field(default_factory=list)
    """When (loop seconds) how many bytes of what is moved came."""
    waits: list[float] = field(default_factory=list)
    """Seconds from one record in sync to the next. Each answer has one."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    admins: list[int] = field(default_factory=list)
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    ends: bool = False

    def do(self, what: Any) -> None:
        """Do something until the end of the run."""
        self.tasks.append(asyncio.create_task(what))

    # The peers

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the fetches of one connection."""
        leader, loop = peers.Leader(self.drawn.batch, {MOVED}, {LIVE}), asyncio.get_running_loop()
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if int.from_bytes(frame[:2]) != FETCH:
                    break
                request = decode_fetch_request(frame)
                waits = request.min_bytes > 1 or MOVED[0] not in [topic.name for topic in request.topics]
                until_live = LIVE_SECONDS - loop.time() % LIVE_SECONDS if waits else 0.0
                late = 0.06 if "late answers" in self.drawn.happenings else 0.005
                await asyncio.sleep(late + min(until_live, request.max_wait_ms / 1000))
                writer.write(leader.answer(frame))
        writer.close()

    async def follow(self, port: int, number: int) -> None:
        """Fetch over one connection after the other."""
        while not self.ends:
            with contextlib.suppress(ConnectionError):
                await self._follow_once(port, number)

    async def _follow_once(self, port: int, number: int) -> None:
        happenings, loop = self.drawn.happenings, asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        if "pauses" in happenings:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        follower = peers.Follower(self.drawn.version, [LIVE, MOVED], replica_id=2 if self.is_received else 2 + number)
        ahead = AHEAD if "sends ahead" in happenings else 1
        end = loop.time() + (0.7 if "connects anew" in happenings else 3600)
        asked, rest, answers, last = list[int](), b"", 0, loop.time()
        try:
            while loop.time() < end and not self.ends:
                while len(asked) < ahead:
                    answers += 1
                    is_anew = "begins anew" in happenings and answers % 5 == 0
                    await loop.sock_sendall(connection, follower.request(is_full=is_anew))
                    asked.append(follower.correlation_id)
                scanner = FetchResponseScanner(self.drawn.version, asked.pop(0), Expected(walk=follower.topics))
                while not scanner.done:
                    await self.reads.wait()
                    data = rest or await loop.sock_recv(connection, 2**16)
                    if not data:
                        raise ConnectionError
                    _, taken = scanner.receive(memoryview(data))
                    rest = data[taken:]
                for topic in scanner.topics:
                    for seen in topic.records:
                        if topic.name == MOVED[0]:
                            self.arrived.append((loop.time(), seen.size))
                        elif ahead == 1:
                            self.waits.append(loop.time() - last)
                            last = loop.time()
                follower.take(scanner.topics, scanner.head)
        finally:
            connection.close()

    @property
    def is_received(self) -> bool:
        """Whether a follower's sidecar is in the way."""
        return self.drawn.side != "ingress"

    # What happens

    async def happen(self) -> None:
        """Have the drawn things happen until the end."""
        number = 0
        while True:
            number += 1
            if "rates change" in self.drawn.happenings:
                rate = QUOTA - QUOTA // 100 * (number % 2)
                names = [name for name in self.drawn.settings() if name != "topics"]
                await self._set("PATCH", dict.fromkeys(names, rate))
            if "all settings are put" in self.drawn.happenings:
                await self._set("PUT", self.drawn.settings(number))
            if "reloads" in self.drawn.happenings:
                for process in self.processes:
                    process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.2)

    async def pause(self) -> None:
        """Have the followers read nothing for a while, again and again."""
        while True:
            await asyncio.sleep(0.8)
            self.reads.clear()
            await asyncio.sleep(PAUSE_SECONDS)
            self.reads.set()

    async def _set(self, method: str, body: object) -> None:
        def ask(admin: int) -> None:
            with contextlib.closing(HTTPConnection("127.0.0.1", admin, timeout=10)) as connection:
                connection.request(method, "/v1/throttle", json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()

        for admin in self.admins:
            await asyncio.to_thread(ask, admin)

    async def sidecar(self, side: str, upstream: int) -> int:
        """Start a sidecar. Returns where it listens."""
        port, admin = free_port(), free_port()
        file = self.folder / f"{side}.toml"
        settings = self.drawn.settings()
        topics = settings.pop("topics")
        lines = [
            f"broker_id = {1 if side == 'ingress' else 2}",
            f'[admin]\nlisten = "127.0.0.1:{admin}"\n[log]\nlevel = "error"',
            f'[[{side}]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"',
            "peer = 1" if side == "egress" else "",
            "[fetch]\nresponse_max_bytes = 30_000" if "small answers" in self.drawn.happenings else "",
            "[throttle]",
            *[f'"{name}" = {value}' for name, value in settings.items()],
            *[f"[throttle.topics.{topic}]" for topic in topics],
            *[f'"{name}" = "{value}"' for lists in topics.values() for name, value in lists.items()],
        ]
        file.write_text("\n".join(lines))
        command = (sys.executable, "-m", "weir", "run", "--config", str(file))
        self.processes.append(await asyncio.create_subprocess_exec(*command, env={**os.environ}))
        self.admins.append(admin)
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return port
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End all of it."""
        self.ends = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for process in self.processes:
            process.kill()
            await process.wait()
        for writer in self.writers:  # the leader's ends: their peers are gone
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def running(drawn: Drawn, folder: Path) -> AsyncIterator[Run]:
    """A run that goes on."""
    run = Run(drawn, folder)
    run.reads.set()
    server = await asyncio.start_server(run.lead, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        for side in SIDES[:2]:
            if drawn.side in (side, "both"):
                port = await run.sidecar(side, port)
        for number in range(drawn.followers):
            run.do(run.follow(port, number))
        run.do(run.happen())
        if "pauses" in drawn.happenings:
            run.do(run.pause())
        yield run
    finally:
        await run.close()
        server.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_quota_is_kept_and_used_whatever_meets(seed: int, tmp_path: Path) -> None:
    drawn = Drawn.of(seed)
    async with running(drawn, tmp_path) as run:
        await asyncio.sleep(WARM_SECONDS)
        run.arrived.clear()
        run.waits.clear()
        await asyncio.sleep(SECONDS)
        arrived, waits = list(run.arrived), list(run.waits)
    used = sum(size for _, size in arrived) / SECONDS / QUOTA
    worst, waited = worst_second(arrived), max(waits, default=0.0)
    told = f"{seed}: {drawn}: {used:.2f} of the quota, {worst:,.0f} in a second, waited {waited:.2f} s"
    assert worst <= drawn.most, told
    if not IDLES & set(drawn.happenings):
        assert used >= LEAST_USE, told
        assert waited <= LONGEST_WAIT, told
