# SPDX-License-Identifier: Apache-2.0
"""A sidecar's workers: started, given connections and keys, and started again where one ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from weir.proxy.log import EventLog
from weir.proxy.relay.buffers import LARGE_BUFFER_SIZE
from weir.proxy.relay.handshakes import Wanted, open_here
from weir.proxy.relay.transport import Transport
from weir.proxy.tls.keys import ClientAuth, Keys
from weir.proxy.tls.live_keys import LiveKeys
from weir.proxy.tls.results import HandshakeFailed
from weir.proxy.tls_workers.channel import ProcessChannel
from weir.proxy.tls_workers.messages import (
    MOST_LINKS,
    Broken,
    Closed,
    FromWorker,
    KeysRefused,
    LoadKeys,
    Open,
    Ready,
    Shaken,
    SharedCounts,
)
from weir.proxy.tls_workers.transport import Handed, WorkerTransport

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
"""Before a worker is started again that ended: twice as long each time, unless it ran for longer than that."""

START_SECONDS: Final = 10.0
"""For how long a start waits for workers. Followers come at once, and their connections stay where they began."""

WAIT_SECONDS: Final = 3.0
"""For how long a connection waits while no worker is there; then its TLS is done here."""

_END_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.05

_CLIENT_AUTH: Final[dict[ssl.VerifyMode, ClientAuth]] = {
    ssl.CERT_NONE: "none",
    ssl.CERT_OPTIONAL: "requested",
    ssl.CERT_REQUIRED: "required",
}


class TlsWorkers:
    """So many workers, from `start` to `close`. `open` is an OpenTls. Without a ready one, TLS is done here."""

    def __init__(self, count: int, all_keys: Sequence[LiveKeys], log: EventLog) -> None:
        self._keys = {keys: number for number, keys in enumerate(all_keys)}
        self._log = log
        self.ended = 0
        """How many have ended, and should not have."""
        self.workers = [_Worker(number, self._tell, self._ended) for number in range(count)]
        self._restarts: dict[_Worker, asyncio.TimerHandle] = {}

    async def start(self) -> None:
        """Start them, and wait until they take connections, or for START_SECONDS."""
        for worker in self.workers:
            worker.start()
        await self._until(lambda: all(worker.is_ready for worker in self.workers), START_SECONDS)

    async def close(self) -> None:
        """Let them deliver what they have, and end."""
        for restart in self._restarts.values():
            restart.cancel()
        await asyncio.gather(*(worker.close() for worker in self.workers))

    def keys_changed(self) -> None:
        """Give them the keys that were loaded."""
        for worker in self.workers:
            if worker.is_ready:
                worker.tell_keys(self._keys)

    async def open(self, connection: socket.socket, wanted: Wanted) -> Transport:
        """Have the worker do a handshake that has the fewest connections."""
        if self.workers and wanted.keys in self._keys:
            await self._until(lambda: bool(self._ready()), WAIT_SECONDS)
        if wanted.keys in self._keys and (ready := self._ready()):
            worker = min(ready, key=lambda one: len(one.handed))
            worker.tell_keys(self._keys)
            opened = await worker.open(connection, self._keys[wanted.keys], wanted)
            if opened is not None:
                return opened
        return await open_here(connection, wanted)

    def loads(self) -> list[tuple[float, float]]:
        """Return each one's shares of time in which it works, and is late."""
        return [(0.0, 0.0) if worker.counts is None else worker.counts.load() for worker in self.workers]

    def _ready(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.is_ready and worker.free]

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not condition() and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - rare, and of many workers
            await asyncio.sleep(_POLL_SECONDS)

    def _tell(self, event: str, number: int, reason: str) -> None:
        self._log.fault(event, f"worker {number}", reason=reason, effect="the keys before stay in use there")

    def _ended(self, worker: _Worker, reason: str) -> None:
        self.ended += 1
        pause = worker.pause()
        effect = f"its connections break, and come back; it is started again in {pause:g} s"
        self._log.fault("tls_worker_ended", f"worker {worker.number}", reason=reason, effect=effect)
        self._restarts[worker] = asyncio.get_running_loop().call_later(pause, worker.start)


@dataclass(eq=False)
class _Worker:
    """One worker process, as its sidecar sees it."""

    number: int
    _tell: Callable[[str, int, str], None]
    _ended: Callable[[_Worker, str], None]
    is_ready: bool = False
    handed: dict[int, Handed] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    counts: SharedCounts | None = None
    _process: subprocess.Popen[bytes] | None = None
    _channel: ProcessChannel[FromWorker] | None = None
    _told: dict[LiveKeys, Keys] = field(default_factory=dict)
    _started_at: float = 0.0
    _pause: float = FIRST_PAUSE_SECONDS

    def start(self) -> None:
        """Start the process, in place of one that has ended."""
        self._reap()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.counts = SharedCounts()
        passed = (its.fileno(), self.counts.descriptor)
        command = (sys.executable, "-m", "weir.proxy.tls_workers.worker", *map(str, passed))
        self._started_at = asyncio.get_running_loop().time()
        self.free = list(range(MOST_LINKS - 1, -1, -1))
        self._told.clear()
        self._channel = ProcessChannel(ours, FromWorker, self._received, self._channel_ended)
        try:
            self._process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)  # noqa: S603
        except OSError as error:
            self._channel.close()
            self._ended(self, f"it cannot be started: {error}")
        finally:
            its.close()
            self.counts.shared()

    def pause(self) -> float:
        """Return for how long to wait before it is started again."""
        ran = asyncio.get_running_loop().time() - self._started_at
        self._pause = FIRST_PAUSE_SECONDS if ran > LONGEST_PAUSE_SECONDS else self._pause
        now, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return now

    def tell_keys(self, all_keys: dict[LiveKeys, int]) -> None:
        """Tell of keys that it does not have."""
        for keys, number in all_keys.items():
            if self._channel is not None and self._told.get(keys) is not keys.keys:
                self._told[keys] = keys.keys
                context = keys.keys.context
                auth = _CLIENT_AUTH[context.verify_mode] if _accepts(context) else None
                self._channel.send(LoadKeys(number, keys.files, auth, context.check_hostname))

    async def open(self, connection: socket.socket, keys: int, wanted: Wanted) -> WorkerTransport | None:
        """Hand a connection over, and wait for its handshake. None: none began, and the connection is as it was."""
        assert self._channel is not None and self.counts is not None  # noqa: S101
        ours, its = socket.socketpair()
        for end in (ours, its):
            end.setblocking(False)
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE_BUFFER_SIZE)  # the kernel doubles it
        number = self.free.pop()
        handed = self.handed[number] = Handed(number, asyncio.get_running_loop().create_future())
        message = Open(number, keys, wanted.server_name, wanted.allowed_names)
        try:
            self._channel.send(message, (connection.fileno(), its.fileno()))
        except OSError:  # it does not take any more now, or has ended
            ours.close()
            del self.handed[number]
            self.free.append(number)
            return None
        finally:
            its.close()
        try:
            await handed.shaken
        except _NotBegun:
            ours.close()
            return None
        except BaseException:
            ours.close()
            connection.close()
            raise
        return WorkerTransport(ours, connection, handed, self.counts.taken, self._channel.read)

    @property
    def pid(self) -> int | None:
        """The process's; None while there is none."""
        return None if self._process is None else self._process.pid

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError):
            return 0.0

    async def close(self) -> None:
        """Let the process deliver what it has, and wait until it has ended."""
        self.is_ready = False
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, _END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def _received(self, message: FromWorker, _: list[int]) -> None:
        if isinstance(message, Ready):
            self.is_ready = True
        elif isinstance(message, KeysRefused):
            self._tell("tls_keys_refused", self.number, message.reason)
        elif isinstance(message, Closed):
            if self.handed.pop(message.link, None) is not None:
                self.free.append(message.link)
        elif (handed := self.handed.get(message.link)) is not None:
            if isinstance(message, Broken):
                handed.broken = message.reason
            else:
                _settle(handed, message)

    def _channel_ended(self) -> None:
        self.is_ready = False
        status = None if self._process is None else _status(self._process)
        for handed in self.handed.values():
            handed.worker_ended = True
            if not handed.shaken.done():
                handed.shaken.set_exception(HandshakeFailed("worker_ended", "the worker that did it ended"))
        self.handed.clear()
        self._ended(self, f"exit status {status}")

    def _reap(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.counts = None


class _NotBegun(Exception):
    """A worker has not begun a handshake, for want of keys or descriptors."""


def _settle(handed: Handed, message: Shaken) -> None:
    if handed.shaken.done():
        return  # who waited has given up
    if message.result == "ok":
        handed.shaken.set_result(None)
    elif message.result is None:
        handed.shaken.set_exception(_NotBegun())
    else:
        handed.shaken.set_exception(HandshakeFailed(message.result, message.reason))


def _accepts(context: ssl.SSLContext) -> bool:
    return context.protocol == ssl.PROTOCOL_TLS_SERVER


def _status(process: subprocess.Popen[bytes]) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(0.05)
    return None
