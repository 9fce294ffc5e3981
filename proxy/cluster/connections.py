"""The connections to the brokers that are asked, and why one of them did not answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from weir.protocol.errors import ProtocolError
from weir.proxy.cluster.channel import Channel, NoTopicIds, NotSupported
from weir.proxy.config.address import Address
from weir.proxy.log import os_error_reason

SOON_SECONDS = 1.0
QUESTION_TIMEOUT_SECONDS = 5.0

_FAILURES: Final = (OSError, EOFError, ProtocolError)  # TimeoutError is an OSError

_Answer = TypeVar("_Answer")


class NotAnswered(ConnectionError):
    """A broker does not answer; `str()` says why. `is_late`: it may be that it answers later."""

    def __init__(self, reason: str, *, is_late: bool) -> None:
        super().__init__(reason)
        self.is_late = is_late


class BrokerConnections:
    """One connection to each broker that is asked. `servers` know the same, so any of them may be asked.

    The server that answered last is asked first. One that hangs keeps the others from being asked for SOON_SECONDS
    only. Where none answers so soon, those that hang are asked once more, and have QUESTION_TIMEOUT_SECONDS each.
    """

    def __init__(self, servers: Sequence[Address], open_channel: Callable[[Address], Awaitable[Channel]]) -> None:
        self._servers = deque(servers)
        self._open_channel = open_channel
        self._channels: dict[Address, Channel] = {}
        self._moved_before = 0  # bytes of channels that were closed

    @property
    def server(self) -> Address:
        """The server that is asked first."""
        return self._servers[0]

    @property
    def servers(self) -> str:
        """All servers, as shown in the log."""
        return ",".join(sorted(map(str, self._servers)))

    @property
    def moved(self) -> int:
        """Bytes sent and received so far."""
        return self._moved_before + sum(channel.moved for channel in self._channels.values())

    async def ask_any(self, question: Callable[[Channel], Awaitable[_Answer]]) -> _Answer:
        """Return the first server's answer. Raises NoTopicIds where one is without, else NotAnswered that names all."""
        failures: dict[Address, str] = {}
        without_ids: NoTopicIds | None = None
        late = list(self._servers)
        for seconds in (SOON_SECONDS, QUESTION_TIMEOUT_SECONDS) if len(late) > 1 else (QUESTION_TIMEOUT_SECONDS,):
            asked, late = late, []
            for server in asked:
                try:
                    answer = await self.ask(server, question, seconds)
                except NotAnswered as error:
                    failures[server] = str(error)
                    if error.is_late:
                        late.append(server)
                except NoTopicIds as error:
                    without_ids = error
                else:
                    self._servers.rotate(-self._servers.index(server))
                    return answer
        if without_ids is not None:
            raise without_ids
        reasons = "; ".join(f"{server}: {reason}" for server, reason in failures.items())
        raise NotAnswered(reasons, is_late=False)

    async def ask(
        self, address: Address, question: Callable[[Channel], Awaitable[_Answer]], seconds: float | None = None
    ) -> _Answer:
        """Return a broker's answer. Raises NotAnswered after `seconds` or QUESTION_TIMEOUT_SECONDS, or NotSupported."""
        seconds = QUESTION_TIMEOUT_SECONDS if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                return await question(await self._channel(address))
        except NotSupported:
            raise
        except BaseException as error:  # on this connection the answer might come late, to another question
            self._close(address)
            if isinstance(error, _FAILURES):
                raise NotAnswered(_reason_of(error, seconds), is_late=isinstance(error, TimeoutError)) from error
            raise

    def close(self) -> None:
        """Close all connections. The next question opens another one."""
        for address in list(self._channels):
            self._close(address)

    async def _channel(self, address: Address) -> Channel:
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            self._close(address)
            channel = self._channels[address] = await self._open_channel(address)
        return channel

    def _close(self, address: Address) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            self._moved_before += channel.moved
            channel.close()


def _reason_of(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, EOFError):
        return "closed the connection without an answer"
    reason = os_error_reason(error) if isinstance(error, OSError) else ""
    return reason or str(error) or type(error).__name__
