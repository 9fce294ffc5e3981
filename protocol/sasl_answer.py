# SPDX-License-Identifier: Apache-2.0
"""How long a SASL session may last, as a broker's answer to SaslAuthenticate says (KIP-368).

SaslAuthenticateResponse.json: error_code, error_message, auth_bytes and, from v1 on, session_lifetime_ms. v2 is
flexible.
"""

import struct
from collections.abc import Callable
from typing import Final

from weir.protocol.frame_reader import FrameReader, Structure
from weir.protocol.header import SIZE

_FIRST_WITH_LIFETIME: Final = 1
_FIRST_FLEXIBLE: Final = 2
_LAST_KNOWN: Final = 2
_ERROR_CODE_SIZE: Final = 2
_LIFETIME: Final = struct.Struct(">q")


class SaslAnswer(FrameReader):
    """Sees one answer while it passes: a `ResponseObserver`.

    `on_passed` is then told how long the session may last (seconds), None where the answer says nothing of it: also in
    the middle of an authentication.
    """

    __slots__ = ("_lifetime_ms", "_on_passed")

    def __init__(self, version: int, on_passed: Callable[[float | None], object]) -> None:
        super().__init__(self._lifetime(version))
        self._lifetime_ms = 0
        self._on_passed = on_passed

    def passed(self) -> None:
        """Tell what was read. What cannot be read says nothing: its client reads it, too, and knows better."""
        self._on_passed(self._lifetime_ms / 1000 if self._lifetime_ms > 0 else None)

    def _lifetime(self, version: int) -> Structure:
        if not _FIRST_WITH_LIFETIME <= version <= _LAST_KNOWN:
            return
        self.skip(2 * SIZE.size)
        if version >= _FIRST_FLEXIBLE:
            yield from self.tags()
            self.skip(_ERROR_CODE_SIZE)
            yield from self.compact_bytes()
            yield from self.compact_bytes()
        else:
            self.skip(_ERROR_CODE_SIZE)
            yield from self.string()
            yield from self.need(SIZE.size)
            (length,) = SIZE.unpack_from(self.view, self.at)
            self.skip(SIZE.size + max(0, length))
        yield from self.need(_LIFETIME.size)
        (self._lifetime_ms,) = _LIFETIME.unpack_from(self.view, self.at)
