# SPDX-License-Identifier: Apache-2.0
"""Whether a capture that ends TLS can stand in for its broker: where it cannot, replication would end with it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Final

from weir.protocol.metadata import encode_api_versions_request
from weir.proxy.cluster.channel import CLIENT_ID
from weir.proxy.config.address import Address
from weir.proxy.config.keys import RouteTls
from weir.proxy.relay.transport import connect
from weir.proxy.tls.live_keys import TlsClient
from weir.proxy.tls.results import LASTING_FAILURES, TlsStats, failed_by

LOOK_SECONDS: Final = 10.0
"""How often the broker is tried while the sidecar is in the path; each time is a handshake."""

_ANSWER_SECONDS: Final = 2.0  # less than ALIVE_SECONDS
_FAILURES: Final = 3
"""So many in a row are no chance, such as a broker that is just ending."""

GRACE_SECONDS: Final = 5.0
"""For so long followers may be away: they wait for a second before they connect again, and others do not."""

_FIRST_PAUSE_SECONDS: Final = 60.0
_LONGEST_PAUSE_SECONDS: Final = 3600.0


@dataclass(eq=False)
class TlsTrial:
    """Tries what followers need: that the broker takes this sidecar for itself, and the sidecar takes followers.

    - `trouble` says why connections are not to be captured now; None where they may.
    - Before it goes in, the broker has to have answered over TLS. While it is in, it goes out when TLS with the broker
      fails, or when no follower comes through: each handshake of theirs fails, and no connection stands. After that it
      tries once more in a minute, then ever less often.
    - A broker that does not run, or is slow, changes nothing.

    `tls` is what the leader's side uses; `mark` is set on its own connections. `clock` gives monotonic seconds, `now`
    those since 1970.
    """

    tls: InitVar[RouteTls]
    _stats: TlsStats
    _mark: int | None
    _clock: Callable[[], float] = time.monotonic
    _now: Callable[[], float] = time.time
    _next_look: float = -math.inf
    _failures: int = 0
    _pause: float = _FIRST_PAUSE_SECONDS
    _out_until: float = -math.inf
    _alone_since: float = math.inf  # while it is in, and no connection stands
    _seen: tuple[int, int] = (0, 0)  # followers' handshakes: those that were done, and those that failed

    def __post_init__(self, tls: RouteTls) -> None:
        self._server, self._client = tls
        self.trouble = None if self._client is None else "TLS with its own broker was not tried yet"

    async def check(self, broker: Address, *, is_in: bool, has_links: bool) -> None:
        """Look at the broker, which listens at `broker`, if it is time to, and at what became of followers."""
        if self._client is None or self._clock() < self._out_until:
            return
        if not is_in or has_links:
            self._seen, self._alone_since = self._handshakes(), self._clock()
        elif (trouble := self._of_followers()) is not None:
            self.trouble = trouble
            self._out_until = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            return
        if is_in and has_links:
            self._pause = _FIRST_PAUSE_SECONDS
        if is_in and self._clock() < self._next_look:
            return
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                failure = await self._failure(broker, self._client)
        except (OSError, TimeoutError) as error:
            if not is_in:
                reason = str(error) or f"no answer in {_ANSWER_SECONDS:g} s"
                self.trouble = f"its own broker, {broker}, cannot be reached over TLS: {reason}"
            return
        self._failures = 0 if failure is None else self._failures + 1
        self._next_look = self._clock() + (LOOK_SECONDS if failure is None else 0.0)
        if failure is None or not is_in or self._failures >= _FAILURES:
            self.trouble = failure

    async def _failure(self, broker: Address, client: TlsClient) -> str | None:
        """Return why TLS with the broker fails; None where it does not. OSError, TimeoutError: it is not there."""
        if self._server is not None:
            expires_at = self._server.keys.keys.expires_at
            if expires_at is not None and expires_at <= self._now():
                return "the certificate in capture.tls has expired"
        connection = await connect(broker, self._mark)
        name = client.server_name or broker.host
        try:
            reader, writer = await asyncio.open_connection(
                sock=connection, ssl=client.keys.keys.context, server_hostname=name
            )
        except OSError as error:  # the socket is closed
            return f"TLS with its own broker, {broker}, fails: {failed_by(error).reason}"
        try:
            writer.write(encode_api_versions_request(0, CLIENT_ID))
            answered = bool(await reader.read(4))
        except OSError as error:  # with TLS 1.3 it refuses a certificate only now
            return f"its own broker, {broker}, does not take its certificate: {failed_by(error).reason}"
        finally:
            writer.transport.abort()
        return None if answered else f"its own broker, {broker}, closes TLS without an answer: see whom it trusts"

    def _of_followers(self) -> str | None:
        done, failed = self._handshakes()
        if done > self._seen[0]:
            self._seen = done, failed
        if failed - self._seen[1] < _FAILURES or self._clock() - self._alone_since < GRACE_SECONDS:
            return None
        return (
            "no follower came through: TLS with each of them fails, see tls_failed in the log; look at capture.tls ca"
            " and allowed_names"
        )

    def _handshakes(self) -> tuple[int, int]:
        counts = self._stats.handshakes
        failed = sum(counts["leader", "client", result] for result in LASTING_FAILURES)
        return counts["leader", "client", "ok"], failed
