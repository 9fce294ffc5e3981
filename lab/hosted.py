# SPDX-License-Identifier: Apache-2.0
"""Real brokers on hosts of their own (lab.hosts), with ordinary listeners, and sidecars that capture connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weir.lab.broker import Broker
from weir.lab.errors import LabError
from weir.lab.hosts import Hosts
from weir.lab.modes import KraftCluster
from weir.lab.network import Ports
from weir.lab.security import AUTHORIZER_LOG, Security
from weir.lab.settings import Place, Route, kraft_properties, properties_text, toml_text
from weir.lab.sidecar import Sidecar

PORT: Final = 9092
"""Of the listener between brokers, which is captured; without Security clients use it, too."""

_CLIENT_PORT: Final = 9094
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
        """host:port of the listener between brokers."""
        return f"{self.host}:{self.listener}"

    @property
    def advertised_address(self) -> str:
        """host:port that the broker advertises to the others."""
        return self.listener_address

    @property
    def admin_address(self) -> str:
        """host:port of the sidecar's HTTP."""
        return f"{self.host}:{self.admin}"


class HostedCluster(KraftCluster):
    """A KRaft cluster whose broker N runs on host N, at port 9092. No sidecar runs until `put_in`.

    `security`: makes what brokers speak with each other, from the hosts; clients then have a listener of their own.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        ipv6: bool = False,
        security: Callable[[Hosts], Security] | None = None,
        **options: Any,
    ) -> None:
        flags = [] if security is None else [AUTHORIZER_LOG]
        super().__init__(brokers, jvm_flags=flags, **options)
        self.hosts = Hosts(brokers)
        self._ipv6 = ipv6
        self._new_security = security
        self._security: Security | None = None

    def put_in(self, broker_id: int, capture: Mapping[str, Any], tables: Mapping[str, Any] | None = None) -> Sidecar:
        """Start a sidecar beside a running broker; `capture` and further `tables` are of its configuration."""
        place = self.places[broker_id]
        config = self._lab.folder / f"sidecar-{broker_id}.toml"
        config.write_text(
            toml_text(
                {
                    "broker_id": broker_id,
                    "admin": {"listen": place.admin_address, "without_tokens": True},
                    "cluster": self._cluster_table(broker_id),
                    "capture": {"port": PORT, **capture},
                    **(tables or {}),
                }
            )
        )
        sidecar = Sidecar(
            self._lab,
            broker_id,
            self.hosts.on(broker_id, self._options.sidecar_command(config)),
            config,
            self._lab.log(f"sidecar-{broker_id}"),
            place.admin_address,
            {**os.environ, **self._options.sidecar_env},
        )
        self.sidecars[broker_id] = sidecar
        sidecar.start()
        return sidecar

    def _cluster_table(self, broker_id: int) -> dict[str, Any]:
        """Return a sidecar's [cluster]: it asks at the captured port, its own broker first."""
        servers = sorted(self.places.values(), key=lambda place: place.broker_id != broker_id)
        table = {"bootstrap_servers": ",".join(place.listener_address for place in servers), "poll_seconds": 1}
        if self._security is None:
            return table
        file = self._lab.folder / f"client-{broker_id}.properties"
        file.write_text(properties_text(self._security.client_properties(broker_id)))
        return {**table, "properties": str(file)}

    def _start_once(self) -> None:
        self.hosts.start()
        if self._new_security is not None:
            self._security = self._new_security(self.hosts)
        super()._start_once()
        if self._security is not None:
            self._security.allow_clients(self.bootstrap_servers)

    def _format_options(self) -> list[str]:
        return [] if self._security is None else self._security.format_options(self.broker_ids)

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
            client=PORT if self._security is None else _CLIENT_PORT,
            admin=_ADMIN_PORT,
            controller=_CONTROLLER_PORT,
            host=self._host_of(broker_id),
        )

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        if not isinstance(place, HostPlace):
            raise LabError("A broker of a HostedCluster needs a host.")
        listeners = {"PLAINTEXT" if self._security is None else "REPL": place.listener_address}
        if self._security is not None:
            listeners["CLIENT"] = place.client_address
        controller = f"{self._host_of(self.controller)}:{_CONTROLLER_PORT}"
        between_brokers = next(iter(listeners))
        if place.broker_id == self.controller:
            listeners["CONTROLLER"] = controller
        listed = ",".join(f"{name}://{address}" for name, address in listeners.items())
        if self._security is None:
            security: dict[str, object] = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"}
        else:
            security = self._security.properties(place.broker_id, self.broker_ids)
        return {
            **kraft_properties(place, self.controller, str(data)),
            "controller.quorum.voters": f"{self.controller}@{controller}",
            "listeners": listed,
            "advertised.listeners": listed,
            "inter.broker.listener.name": between_brokers,
            **security,
        }

    def _broker(self, place: Place) -> Broker:
        broker = super()._broker(place)
        broker.command = self.hosts.on(place.broker_id, broker.command)
        return broker
