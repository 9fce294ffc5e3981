# SPDX-License-Identifier: Apache-2.0
"""Keys that are loaded again when their files change, and how a route's connections use them.

Connections that stand are not touched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from weir.proxy.log import EventLog
from weir.proxy.tls.keys import KeyFiles, Keys, KeysError
from weir.proxy.tls.results import TlsStats

LOOK_SECONDS: Final = 5.0

_Stamp = tuple[tuple[int, int, int] | None, ...]


class LiveKeys:
    """The keys of one end: those that its files had when they could last be used.

    `name` is the table's path in the configuration. `load` reads the files and blocks; the first call is made at once,
    and may raise KeysError.
    """

    def __init__(self, name: str, files: KeyFiles, load: Callable[[], Keys]) -> None:
        self.name = name
        self.files = files
        self._load = load
        self._stamp = self._stamps()
        self.keys = load()

    def reload(self) -> bool:
        """Load the files again if they changed, and return whether they did. KeysError: the old keys stay. It blocks.

        Files that could not be used are tried again at the next call: another one may not be written yet.
        """
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        self.keys = self._load()
        self._stamp = stamp
        return True

    def _stamps(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in self.files.paths)


@dataclass(eq=False)
class KeyWatch:
    """Looks at the files of all keys, in a thread, from `start` to `close`.

    `changed` is called when there are new ones. `now` gives seconds since 1970.
    """

    all_keys: Sequence[LiveKeys]
    stats: TlsStats
    _log: EventLog
    _changed: Callable[[], None] = lambda: None
    now: Callable[[], float] = time.time
    _running: asyncio.Task[None] | None = field(init=False, default=None)

    def start(self) -> None:
        """Begin to look, if there is anything to look at."""
        if self.all_keys:
            self._running = asyncio.create_task(self._run())

    def close(self) -> None:
        """Stop looking at the files."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def seconds_left(self) -> dict[str, float]:
        """Return how long each certificate is valid, by the name of its table; below 0 where it has expired."""
        expiries = {keys.name: keys.keys.expires_at for keys in self.all_keys}
        return {name: at - self.now() for name, at in expiries.items() if at is not None}

    async def check(self) -> None:
        """Load the keys again whose files have changed, and say so."""
        has_changed = False
        for keys in self.all_keys:
            try:
                if await asyncio.to_thread(keys.reload):
                    has_changed = True
                    self.stats.reloads["ok"] += 1
                    self._log.info("tls_keys_reloaded", keys=keys.name, effect="new connections use them")
            except KeysError as error:
                self.stats.reloads["refused"] += 1
                self._log.fault("tls_keys_refused", keys.name, reason=str(error), effect="the old keys stay in use")
        if has_changed:
            self._changed()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.check()


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()  # of what a link leads to: Kubernetes changes the link
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


@dataclass(frozen=True, slots=True)
class TlsServer:
    """TLS with those who connect to a listener.

    - `allowed_names`: the names of which a client's certificate has to have one; None: any name, or no certificate.
    - `takes_plaintext`: whether a client may also speak without TLS.
    """

    keys: LiveKeys
    allowed_names: tuple[str, ...] | None = None
    takes_plaintext: bool = False


@dataclass(frozen=True, slots=True)
class TlsClient:
    """TLS with an upstream.

    - `server_name`: the name that its certificate has to have; None: the host that is connected to. Where
      `allowed_names` are given, one of these counts instead.
    - `falls_back`: whether to go on without TLS where the upstream does not speak it.
    """

    keys: LiveKeys
    server_name: str | None = None
    allowed_names: tuple[str, ...] | None = None
    falls_back: bool = False
