# SPDX-License-Identifier: Apache-2.0
"""A KRaft cluster whose brokers speak TLS, SASL or both with each other, and authorize what they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weir.lab.kerberos import Realm
from weir.lab.modes import KraftCluster
from weir.lab.network import LOOPBACK, Ports
from weir.lab.sasl import SERVICE, Mechanism
from weir.lab.security import AUTHORIZER_LOG, BrokerKeys, Protocol, Security, denials, fetchers, principal
from weir.lab.settings import Place


class SecuredCluster(KraftCluster):
    """Brokers with StandardAuthorizer on one machine: see lab.security.Security. They reach each other as localhost.

    - With SASL, the user CLIENT may read and write every topic through the brokers' own listener too.
    - `ingress` and `egress` have further keys of sidecars' routes, as in lab.settings.SidecarOptions.
    - `mechanisms` has those by which brokers ask others, where that is not SCRAM-SHA-512. With GSSAPI, the cluster has
      a Kerberos realm (lab.kerberos), and needs `own_names`: they are in the brokers' principals.
    - With `own_names`, brokers reach broker N as `broker-N`, a name that no other program here resolves.

    Other options: see LabOptions.
    """

    def __init__(
        self,
        protocol: Protocol,
        keys: Mapping[int, BrokerKeys] | None = None,
        *,
        ingress: Mapping[int, Mapping[str, Any]] | None = None,
        egress: Mapping[int, Mapping[int, Mapping[str, Any]]] | None = None,
        own_names: bool = False,
        session_seconds: int = 10,
        mechanisms: Mapping[int, Mechanism] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(jvm_flags=[AUTHORIZER_LOG], **options)
        self._security = Security(protocol, keys or {}, session_seconds, mechanisms or {}, clients_host=LOOPBACK)
        self._sidecar_options = replace(self._sidecar_options, ingress=ingress or {}, egress=egress or {})
        self._own_names = own_names
        self.realm: Realm | None = None
        """That of Kerberos, where a broker uses it."""

    def fetchers(self, broker_id: int) -> set[tuple[str, str]]:
        """Return whose fetches a broker allowed as another broker's so far: (principal, host)."""
        return fetchers(self.brokers[broker_id])

    def denials(self) -> list[str]:
        """Return the lines of all brokers' logs about something that was not allowed, or someone unknown."""
        return denials(self.brokers.values())

    def _start_once(self) -> None:
        super()._start_once()
        self._security.allow_clients(self.bootstrap_servers)

    def _prepare(self, ports: Ports) -> None:
        super()._prepare(ports)
        if "GSSAPI" not in self._security.mechanisms.values():
            return
        self.realm = Realm(self._lab, ports.take())
        self.realm.start(f"{SERVICE}/{principal(broker)}" for broker in self.broker_ids)
        self._security = replace(self._security, keytab=str(self.realm.keytab))
        flags = (AUTHORIZER_LOG, f"-Djava.security.krb5.conf={self.realm.config}")
        self._options = replace(self._options, jvm_flags=flags)

    def _place(self, broker_id: int, ports: Ports) -> Place:
        place = super()._place(broker_id, ports)
        return replace(place, name=principal(broker_id)) if self._own_names else place

    def _format_options(self) -> list[str]:
        return self._security.format_options(self.broker_ids)

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        security = self._security.properties(place.broker_id, self.broker_ids)
        return {**super()._properties_of(place, data), **security}
