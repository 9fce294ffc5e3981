# SPDX-License-Identifier: Apache-2.0
"""The throttle time that a limited producer is told."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from weir.limits.clients import Client
from weir.protocol.produce_response import with_throttle_time
from weir.protocol.produce_versions import nearest_produce_version
from weir.protocol.response_scanner import Buffer
from weir.protocol.response_stream import ResponseObserver
from weir.proxy.limits.stage import LimitStage

_THROTTLE_TIME: Final = struct.Struct(">i")

_MOST_HELD_PART: Final = 0.9  # of what a request can be held for, where the rest of a pause is told

_TOLD_PART: Final = 0.8  # of a pause, where limits are shared
_LEAST_TOLD_SECONDS: Final = 0.2
_MOST_TOLD_ANYWAY: Final = 1.0

_LONGEST_ANSWER: Final = 64 * 1024  # bytes of a Produce answer that is kept to be changed


class ProduceAnswer(ResponseObserver):
    """Sees the answer to a Produce request, and tells a client that would wait for it how long to wait.

    A small answer is kept until it is whole, as the field comes last. `held` is how long the next request may be held,
    and `most_told` bounds what is told (seconds).
    """

    def __init__(
        self,
        stage: LimitStage,
        client: Client,
        version: int,
        held: float,
        most_told: float,
        answered: Callable[[], None],
    ) -> None:
        self._stage = stage
        self._client = client
        self._version = version
        self._held = held
        self._most_told = most_told
        self._answered = answered
        self._kept = bytearray()
        self._left = -1

    @property
    def done(self) -> bool:
        """Whether the answer has passed whole."""
        return self._left == 0

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take bytes; what is sent for them may come later."""
        taken = 0
        if self._left < 0:
            taken = min(_THROTTLE_TIME.size - len(self._kept), len(view))
            self._kept += view[:taken]
            if len(self._kept) < _THROTTLE_TIME.size:
                return [], taken
            self._left = max(0, _THROTTLE_TIME.unpack(self._kept)[0])
        step = min(self._left, len(view) - taken)
        self._left -= step
        kept, part = self._kept, view[taken : taken + step]
        taken += step
        out: list[Buffer] = []
        if len(kept) + step + self._left > _LONGEST_ANSWER:
            out, self._kept = [bytes(kept), part] if kept else [part], bytearray()
        else:
            kept += part
            if not self._left:
                out = [self._changed(bytes(kept))]
        if not self._left:
            self._answered()
        return out, taken

    def _changed(self, answer: bytes) -> bytes:
        if not nearest_produce_version(self._version).clients_wait:
            return answer
        pause, is_shared = self._client.pause(), self._client.is_shared
        expected = self._client.expected_wait()
        seconds = told_seconds(pause, expected, self._most_told, self._held, is_shared=is_shared)
        changed = with_throttle_time(answer, self._version, int(seconds * 1000))
        if changed != answer:
            now = self._stage.clock()
            self._client.rates.throttled(now, now + seconds)
        return changed


def told_seconds(pause: float, expected: float, most: float, held: float, *, is_shared: bool = False) -> float:
    """Return how many seconds a client is told to wait itself: what its next request can't be `held` for, if any.

    That request is `expected` to wait for the `pause`, and for those of the client's other connections that are in line
    before it.

    What is told cannot be taken back when limits change, keeps a client's other requests waiting too, and Java logs it
    as a warning each time. So no more is told than has to be, and not more than `most`.

    Where several sidecars have parts of a limit, a request that is held counts as one that wants a larger part. So the
    client is then told of a part of any pause.
    """
    least = _TOLD_PART * min(pause, _MOST_TOLD_ANYWAY) if is_shared and pause >= _LEAST_TOLD_SECONDS else 0.0
    return min(max(least, expected - _MOST_HELD_PART * held), most)
