"""Checks for readiness whether upstreams answer: to ApiVersions, or to a TLS greeting where the listener has TLS."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import cache

from weir.access.tls_contexts import client_context
from weir.protocol.metadata import encode_api_versions_request
from weir.proxy.cluster.channel import CLIENT_ID
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.config.address import Address
from weir.proxy.log import os_error_reason
from weir.proxy.tls.live_keys import TlsClient

PROBE_TIMEOUT_SECONDS = 1.0
CACHE_SECONDS = 1.0

_API_VERSIONS = encode_api_versions_request(0, CLIENT_ID)
"""Brokers answer it before authentication, so it needs no credentials."""

_WHAT = "upstream"
_READ_BYTES = 65536


@dataclass(eq=False)
class UpstreamProbe:
    """Checks all addresses at once, at most once in CACHE_SECONDS. `clock` gives monotonic seconds.

    `tls` has the TLS that is used with some of them. It always opens new connections, since it has to find out whether
    the upstream accepts any.
    """

    addresses: InitVar[Iterable[Address]]
    _clock: Callable[[], float] = time.monotonic
    _stats: PollStats = field(default_factory=PollStats)
    tls: Mapping[Address, TlsClient] = field(default_factory=dict)
    _speaks_tls: set[Address] = field(default_factory=set)  # of those where TLS passes as it is
    _moved: dict[Address, int] = field(default_factory=dict)  # bytes of the check under way, without those of TLS
    _probed_at: float = -math.inf
    _failures: dict[Address, str | None] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self, addresses: Iterable[Address]) -> None:
        self._stats.known(_WHAT)
        self._addresses = tuple(dict.fromkeys(addresses))

    async def failures(self) -> list[str]:
        """Return one sentence for each address that does not answer."""
        async with self._lock:
            if self._clock() - self._probed_at >= CACHE_SECONDS:
                found = await asyncio.gather(*map(self._failure, self._addresses))
                self._failures = dict(zip(self._addresses, found, strict=True))
                self._probed_at = self._clock()
            return [failure for failure in self._failures.values() if failure is not None]

    @property
    def last_failures(self) -> list[str] | None:
        """What `failures` returned last; None before the first check."""
        if len(self._failures) < len(self._addresses):
            return None
        return [failure for failure in self._failures.values() if failure is not None]

    def failure_of(self, address: Address) -> str | None:
        """Return the sentence about one address, by the last check; None where it answered."""
        return self._failures.get(address)

    async def _failure(self, address: Address) -> str | None:
        begin = self._clock()
        failure = await self._asked(address)
        result = "ok" if failure is None else "failed"
        self._stats.count(_WHAT, result, self._clock() - begin, self._moved.pop(address, 0))
        return failure

    async def _asked(self, address: Address) -> str | None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                if await self._answers(address):
                    return None
        except TimeoutError:
            return f"upstream {address} did not answer within {PROBE_TIMEOUT_SECONDS:g} s"
        except OSError as error:
            return f"upstream {address} cannot be reached: {os_error_reason(error)}"
        return f"upstream {address} closes connections without an answer"

    async def _answers(self, address: Address) -> bool:
        if address in self.tls:
            return await self._answers_api_versions(address)
        if address not in self._speaks_tls:
            if await self._answers_api_versions(address):
                return True
            # a TLS listener closes the connection on plaintext
            if not await answers_tls(address):
                return False
            self._speaks_tls.add(address)
            return True
        if await answers_tls(address):
            return True
        self._speaks_tls.discard(address)
        return False

    async def _answers_api_versions(self, address: Address) -> bool:
        secured = self.tls.get(address)
        if secured is None:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        else:
            name = secured.server_name or address.host
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=secured.keys.keys.context, server_hostname=name
            )
        try:
            writer.write(_API_VERSIONS)
            with contextlib.suppress(ConnectionError):
                answer = await reader.read(_READ_BYTES)
                self._moved[address] = len(_API_VERSIONS) + len(answer)
                return bool(answer)
            return False
        finally:
            writer.transport.abort()


@cache
def _greeting() -> ssl.SSLContext:
    # No data is sent, so it does not matter who answers.
    context = client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def answers_tls(address: Address) -> bool:
    """Whether what listens there speaks TLS. Raises OSError where nothing does."""
    try:
        _, writer = await asyncio.open_connection(address.host, address.port, ssl=_greeting())
    except (ssl.SSLEOFError, ConnectionResetError):
        return False
    except ssl.SSLError:
        return True  # it refuses this client, but in TLS
    writer.transport.abort()
    return True
