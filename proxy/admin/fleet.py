# SPDX-License-Identifier: Apache-2.0
"""The other sidecars, asked one by one when somebody looks: a browser on this one's page may not reach them itself."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import aiohttp
import msgspec

from weir.proxy.admin.held_up import Culprit
from weir.proxy.admin.signatures import Sign, unsigned
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Config
from weir.proxy.log import os_error_reason

FRESH_SECONDS: Final = 2.0
"""Answers this young are shown again, so that many who look at once cost no more than one."""

ANSWER_SECONDS: Final = 3.0
MOST_SIDECARS: Final = 1000
_MOST_BYTES: Final = 4 << 20  # of an answer
_AT_ONCE: Final = 64
_PATH: Final = "/v1/status"


class Target(NamedTuple):
    """Where a sidecar is expected, and of which broker; None where only its answer tells."""

    admin: Address
    broker_id: int | None = None


class _Lag(msgspec.Struct):
    messages: int
    partitions_behind: int
    partitions_stuck: int
    max_seconds: float
    time_left_seconds: float | None = None
    stands_still: bool = False


class _HeldUp(msgspec.Struct):
    by: Culprit
    sentence: str


class _Quota(msgspec.Struct):
    name: str
    rate_bytes_per_second: float
    bytes_per_second: int | None = None
    mode: str = "enforce"


class _Side(msgspec.Struct):
    throttled_rate_bytes_per_second: float
    connections: int
    lag: _Lag
    quota_bytes_per_second: int | None = None
    quotas: list[_Quota] = []
    held_up_by: _HeldUp | None = None


class _Status(msgspec.Struct):
    """What is shown of another sidecar's `GET /v1/status`; what else there is, is left out."""

    version: str
    broker_id: int | None  # None: it waits for its file, and has no sides
    state: str
    ready: bool
    sides: dict[Literal["leader", "follower"], _Side]
    not_ready: list[str] = []


Row = dict[str, Any]


@dataclass(eq=False)
class Fleet:
    """Asks the sidecars of `[admin] fleet`, or else those at the hosts of `[cluster]`'s brokers; keeps no connection.

    `hosts` tells the brokers' hosts by id, `own` this sidecar's status, `sign` opens the others',
    `tls` is what to ask them with; None: without TLS. `clock` gives monotonic seconds.
    """

    config: Config
    hosts: Callable[[], Mapping[int, str]]
    own: Callable[[], Awaitable[Mapping[str, Any]]]
    clock: Callable[[], float]
    sign: Sign = unsigned
    tls: Callable[[], ssl.SSLContext] | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rows: list[Row] = field(default_factory=list)
    _asked_at: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is anybody to ask."""
        return self.config.admin.fleet is not None or self.config.cluster is not None

    async def rows(self) -> list[Row]:
        """Return what each sidecar says, by broker id; of one that does not answer, `error` says why."""
        async with self._asking:
            if self._asked_at is None or self.clock() - self._asked_at >= FRESH_SECONDS:
                self._rows = await self._ask_all()
                self._asked_at = self.clock()
            return self._rows

    async def _ask_all(self) -> list[Row]:
        targets = await self.targets()
        limit = asyncio.Semaphore(_AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        # no decompression: a small answer could become a very large one
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            rows = await asyncio.gather(*[self._ask(target, session, limit) for target in targets])
        return sorted(rows, key=lambda row: (row["broker_id"] is None, row["broker_id"] or 0, row["admin"]))

    async def targets(self) -> list[Target]:
        """Return where the sidecars are expected, this one among them; at most MOST_SIDECARS."""
        if self.config.admin.fleet is None:
            hosts = islice(self.hosts().items(), MOST_SIDECARS)
            return [Target(Address(host, self.config.admin.listen.port), broker_id) for broker_id, host in hosts]
        found = await asyncio.gather(*[_addresses(address) for address in self.config.admin.fleet])
        addresses = dict.fromkeys(address for some in found for address in some)
        return [Target(address) for address in islice(addresses, MOST_SIDECARS)]

    async def _ask(self, target: Target, session: aiohttp.ClientSession, limit: asyncio.Semaphore) -> Row:
        said: Row
        try:
            if target.broker_id == self.config.broker_id:
                status = msgspec.convert(await self.own(), _Status)
            else:
                async with limit:
                    status = msgspec.json.decode(await self._answer(target, session), type=_Status)
            said = msgspec.to_builtins(status)
            if status.broker_id is None:
                said["broker_id"] = target.broker_id
            elif target.broker_id not in (None, status.broker_id):
                said = {"error": f"the sidecar there is that of broker {status.broker_id}"}
        except TimeoutError:
            said = {"error": f"no answer within {ANSWER_SECONDS:g} s"}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            said = {"error": "what answers there is no sidecar of this version"}
        except aiohttp.ClientConnectorError as error:
            said = {"error": os_error_reason(error.os_error)}
        except (aiohttp.ClientError, OSError, ValueError) as error:
            said = {"error": f"what answers there is no sidecar: {error or type(error).__name__}"}
        return {"broker_id": target.broker_id, **said, "admin": str(target.admin)}

    async def _answer(self, target: Target, session: aiohttp.ClientSession) -> bytes:
        url, tls = f"{scheme(self.tls)}://{target.admin}{_PATH}", True if self.tls is None else self.tls()
        headers = self.sign("GET", _PATH, b"", target.broker_id)
        async with session.get(url, headers=headers, allow_redirects=False, ssl=tls) as response:
            if response.status != 200:
                raise ValueError(f"it answers with {response.status}")
            return await body_of(response, _MOST_BYTES)


def scheme(tls: object) -> str:
    """Return the scheme of other sidecars' addresses, which have TLS where this one has."""
    return "http" if tls is None else "https"


async def body_of(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of another sidecar's answer; ValueError where it has more than `most` bytes."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > most:
            raise ValueError("its answer does not end")
    return bytes(body)


async def _addresses(named: Address) -> list[Address]:
    """Return all addresses that a name stands for; the name itself where it has none, so that it is shown."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(named.host, None, type=socket.SOCK_STREAM)
    except OSError:  # TimeoutError is one
        return [named]
    return [Address(str(target[0]), named.port) for *_, target in found]
