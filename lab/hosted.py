"""Real brokers on hosts of their own (lab.hosts), with ordinary listeners, and sidecars that capture connections."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.broker import Broker
from lab.cluster import PROJECT
from lab.errors import LabError
from lab.hosts import Hosts
from lab.modes import KraftCluster
from lab.network import Ports
from lab.settings import Place, Route, kraft_properties, toml_text
from lab.sidecar import Sidecar

PORT: Final = 9092
_CONTROLLER_PORT: Final = 9093
_ADMIN_PORT: Final = 9690


@dataclass(frozen=True, kw_only=True)
class HostPlace(Place):
    """A broker's place on a host of its own."""

    host: str

    @property
    def client_address(self) -> str:
        """host:port for clients."""
        return f"{self.host}:{self.client}"

    @property
    def listener_address(self) -> str:
        """host:port of the listener, for brokers and clients alike."""
        return self.client_address

    @property
    def advertised_address(self) -> str:
        """host:port that the broker advertises."""
        return self.client_address

    @property
    def admin_address(self) -> str:
        """host:port of the sidecar's HTTP."""
        return f"{self.host}:{self.admin}"


class HostedCluster(KraftCluster):
    """A KRaft cluster whose broker N runs on host N, at port 9092. No sidecar runs until `put_in`."""

    def __init__(self, version: str = "4.1.0", brokers: int = 3, *, ipv6: bool = False, **options: Any) -> None:
        super().__init__(version, brokers, **options)
        self.hosts = Hosts(brokers)
        self._ipv6 = ipv6

    def put_in(self, broker_id: int, capture: Mapping[str, Any], tables: Mapping[str, Any] | None = None) -> Sidecar:
        """Start a sidecar beside a running broker; `capture` and further `tables` are of its configuration."""
        place = self.places[broker_id]
        config = self._lab.folder / f"sidecar-{broker_id}.toml"
        config.write_text(
            toml_text(
                {
                    "broker_id": broker_id,
                    "admin": {"listen": place.admin_address, "without_tokens": True},
                    "cluster": {"bootstrap_servers": ",".join(self.bootstrap_servers), "poll_seconds": 1},
                    "capture": {"port": PORT, **capture},
                    **(tables or {}),
                }
            )
        )
        sidecar = Sidecar(
            self._lab,
            broker_id,
            self.hosts.on(broker_id, self._sidecar_command(config)),
            config,
            self._lab.log(f"sidecar-{broker_id}"),
            place.admin,
            PROJECT,
            {**os.environ, **self._sidecar_env},
            admin_host=self._host_of(broker_id),
        )
        self.sidecars[broker_id] = sidecar
        sidecar.start()
        return sidecar

    def _start_once(self) -> None:
        self.hosts.start()
        super()._start_once()

    def _end(self, error: BaseException | None) -> None:
        super()._end(error)
        self.hosts.close()

    def _host_of(self, broker_id: int) -> str:
        address = self.hosts.address6(broker_id) if self._ipv6 else self.hosts.address(broker_id)
        return f"[{address}]" if self._ipv6 else address

    def _prepare(self, ports: Ports) -> None:
        self._controller_port = _CONTROLLER_PORT

    def _place(self, broker_id: int, ports: Ports) -> Place:
        return HostPlace(
            broker_id=broker_id,
            route=Route.NONE,
            advertised=PORT,
            listener=PORT,
            client=PORT,
            admin=_ADMIN_PORT,
            controller=_CONTROLLER_PORT,
            host=self._host_of(broker_id),
        )

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        if not isinstance(place, HostPlace):
            raise LabError("A broker of a HostedCluster needs a host.")
        controller = f"{self._host_of(self.controller)}:{_CONTROLLER_PORT}"
        listeners = [f"PLAINTEXT://{place.client_address}"]
        if place.broker_id == self.controller:
            listeners.append(f"CONTROLLER://{controller}")
        return {
            **kraft_properties(place, self.controller, str(data)),
            "controller.quorum.voters": f"{self.controller}@{controller}",
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def _broker(self, place: Place) -> Broker:
        broker = super()._broker(place)
        broker.command = self.hosts.on(place.broker_id, broker.command)
        return broker
