"""Servers that know the same, and are asked one after the other until one answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from weir.protocol.errors import ProtocolError
from weir.proxy.config.address import Address
from weir.proxy.log import os_error_reason

SOON_SECONDS = 1.0
QUESTION_TIMEOUT_SECONDS = 5.0

FAILURES: Final = (OSError, EOFError, ProtocolError)  # TimeoutError is an OSError
"""What a server that does not answer raises."""

_Answer = TypeVar("_Answer")


class Servers:
    """The one that answered last is asked first.

    One that hangs keeps the others from being asked for SOON_SECONDS only. Where none answers so soon, those that hang
    are asked once more, and have QUESTION_TIMEOUT_SECONDS each.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._servers = deque(addresses)

    def __str__(self) -> str:
        return ",".join(sorted(map(str, self._servers)))

    @property
    def first(self) -> Address:
        """The server that is asked first."""
        return self._servers[0]

    async def ask(
        self, question: Callable[[Address], Awaitable[_Answer]], failed: Callable[[Address], None]
    ) -> _Answer:
        """Return the first answer; `failed` is told of each server without one. ConnectionError names all of them."""
        failures: dict[Address, str] = {}
        late = list(self._servers)
        for seconds in (SOON_SECONDS, QUESTION_TIMEOUT_SECONDS) if len(late) > 1 else (QUESTION_TIMEOUT_SECONDS,):
            asked, late = late, []
            for server in asked:
                try:
                    async with asyncio.timeout(seconds):
                        answer = await question(server)
                except FAILURES as error:
                    failures[server] = reason_of(error, seconds)
                    if isinstance(error, TimeoutError):
                        late.append(server)
                    failed(server)
                else:
                    self._servers.rotate(-self._servers.index(server))
                    return answer
        raise ConnectionError("; ".join(f"{server}: {reason}" for server, reason in failures.items()))


def reason_of(error: Exception, seconds: float) -> str:
    """Say why a server did not answer within `seconds`."""
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, EOFError):
        return "closed the connection without an answer"
    reason = os_error_reason(error) if isinstance(error, OSError) else ""
    return reason or str(error) or type(error).__name__
