# SPDX-License-Identifier: Apache-2.0
"""The links that leave unread what their clients sent: nobody would see that such a client has gone.

What becomes of such a client's link:

- A request of it is held: the link is closed, as its client sends that again. A Produce with acks=0 waits for its turn,
  up to 60 s.
- None is held, and it has sent a reset: the link is closed at once.
- None is held, and it has sent a FIN: what came before passes, until the broker takes nothing for 10 s.

A FIN that is read in turn only ends its own direction: the other may go on, up to 60 s without a byte.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.relay.open_link import OpenLink
from weir.proxy.relay.turn_budget import TurnBudget

LOOK_SECONDS: Final = 0.5
"""How often these links look whether their client is still there."""

MOST_ROOM: Final = 2**21
"""Bytes that the kernel may have of one client while they are not read. Its FIN comes only behind all that it sent."""

MOST_ROOM_OF_ALL: Final = 2**26
"""Bytes for which all links of a side may ask the kernel in this way. The others' clients are seen later."""


@dataclass(eq=False, slots=True)
class UnreadClients:
    """Has each of these links look once, up to LOOK_SECONDS later. One that still does not read is added again.

    Reading may stop and go on many times a second, so nothing is registered with the kernel. `turns` bounds how many
    look in one turn of the loop.
    """

    turns: TurnBudget
    _links: dict[OpenLink, None] = field(default_factory=dict)
    _is_due: bool = False
    _rooms: dict[OpenLink, int] = field(default_factory=dict)
    _room: int = 0

    def add(self, link: OpenLink) -> None:
        """Have a link look soon. Calls for one that is to look already change nothing."""
        self._links[link] = None
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def takes_room(self, link: OpenLink, size: int) -> bool:
        """Return whether the kernel is to be asked for room for so many bytes of a link's client, once."""
        more = size - self._rooms.get(link, 0)
        if more <= 0 or self._room + more > MOST_ROOM_OF_ALL:
            return False
        self._rooms[link] = size
        self._room += more
        return True

    def drop(self, link: OpenLink) -> None:
        """Forget a link that is closed."""
        self._links.pop(link, None)
        self._room -= self._rooms.pop(link, 0)
        self.turns.drop(link.look_at_client)

    def _look(self) -> None:
        self._is_due = False
        links, self._links = self._links, {}
        for link in links:
            self.turns.add(link.look_at_client)
