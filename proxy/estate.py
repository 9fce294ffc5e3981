"""What a sidecar leaves to a new process of it, and takes from the one before."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from weir.limits.clients import Clients
from weir.proxy.admin.http import AdminServer
from weir.proxy.capture.capture import Capture
from weir.proxy.config.address import numeric_address
from weir.proxy.hand_over import Heir, Inherited, Listens, Reached, State
from weir.proxy.limits.layers import LimitLayers
from weir.proxy.relay.listener import Listener
from weir.proxy.relay.replica_sources import Addresses
from weir.proxy.throttle.table import LayeredThrottle


@dataclass(frozen=True, slots=True)
class Estate:
    """The parts of one sidecar that it has or will have. `listeners` grows while it starts.

    `admin_name` tells the admin server's socket, by the address that the file says.
    """

    throttle: LayeredThrottle
    limits: LimitLayers
    clients: Clients
    capture: Capture | None
    listeners: list[Listener]
    admin: AdminServer
    admin_name: str

    async def give(self, heir: Heir, brokers: Addresses, seconds: float) -> None:
        """Give the new process settings and listeners at once, and a connection when nothing is in flight on it.

        What is still in flight after `seconds` is closed.
        """
        for setting in (*self.throttle.handed_over(), *self.limits.handed_over()):
            heir.tell(setting)
        known = {broker: list(map(str, found)) for broker, found in brokers.items()}
        is_captured = self.capture is not None and self.capture.is_in
        pause = None if self.capture is None else self.capture.pause.handed_over()
        heir.tell(State(brokers=known, is_captured=is_captured, pause=pause, owed=self.clients.owed()))
        for listener in self.listeners:
            if listener.descriptor is not None:
                heir.tell(Listens(listener.name), listener.descriptor)
        for descriptor in self.admin.descriptors:
            heir.tell(Listens(self.admin_name), descriptor)
        self.admin.accept_no_more()
        heir.tell(Reached("begun"))
        await asyncio.gather(*(listener.hand_over(heir.take, seconds) for listener in self.listeners))
        heir.tell(Reached("ended"))

    async def take(self, inherited: Inherited) -> Addresses:
        """Go on with what HTTP had set and with the capture. Returns the brokers' addresses."""
        state, settings = inherited.state, inherited.settings
        await self.throttle.take_over(one for one in settings if one.of == "throttle")
        self.limits.take_over(one for one in settings if one.of == "limits")
        self.clients.owe(state.owed)
        brokers = {
            broker: frozenset(address for one in found if (address := numeric_address(one)) is not None)
            for broker, found in state.brokers.items()
        }
        if self.capture is not None:
            if state.pause is not None:
                self.capture.pause.begin(state.pause)
            self.capture.take_over(brokers, is_in=state.is_captured)
        return brokers
