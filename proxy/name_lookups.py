# SPDX-License-Identifier: Apache-2.0
"""Looks names up for an event loop: each question is asked once at a time, in a thread of its own.

asyncio's own way shares a few threads with all else that blocks, such as reading files. While a name server hangs, a
question takes half a minute, and each connection asks again: no other name would be resolved, and no file be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any, Final

MOST_ASKED: Final = 100
"""Questions at a time. Beyond them a name is not resolved, which may be tried again."""

_Question = tuple[Any, Any, int, int, int, int]
_Answer = asyncio.Future[list[tuple[Any, ...]]]


class NameLookups:
    """The questions of one event loop that are not answered yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: dict[_Question, _Answer] = {}

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[Any, ...]]:
        """Do the same as `loop.getaddrinfo`. Who gives up leaves the question to those who ask it meanwhile."""
        question = host, port, family, type, proto, flags
        answer = self._asked.get(question)
        if answer is None:
            if len(self._asked) >= MOST_ASKED:
                raise socket.gaierror(socket.EAI_AGAIN, "too many names are looked up at once")
            answer = self._asked[question] = self._loop.create_future()
            answer.add_done_callback(lambda answered: answered.exception())  # perhaps nobody waits for it any more
            threading.Thread(target=self._ask, args=(question, answer), daemon=True).start()
        return list(await asyncio.shield(answer))

    def _ask(self, question: _Question, answer: _Answer) -> None:
        found: list[tuple[Any, ...]] = []
        error: Exception | None = None
        try:
            found = list(socket.getaddrinfo(*question))
        except Exception as failure:  # noqa: BLE001 - raised where the answer is awaited
            error = failure
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._answered, question, answer, found, error)

    def _answered(
        self, question: _Question, answer: _Answer, found: list[tuple[Any, ...]], error: Exception | None
    ) -> None:
        del self._asked[question]
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)
