"""A KRaft cluster whose brokers speak TLS, SASL or both with each other, and authorize what they are asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from lab.modes import KraftCluster
from lab.network import LOOPBACK
from lab.settings import Place

Protocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]

SCRAM: Final = "SCRAM-SHA-512"
PASSWORD: Final = "of-these-brokers-alone"  # noqa: S105
CLIENT: Final = "a-client"
"""A SASL user that is no broker."""

_LOGINS: Final = "org.apache.kafka.common.security"
_ALLOWED: Final = re.compile(
    r"Principal = User:(\S+) is Allowed operation = CLUSTER_ACTION from host = (\S+) .* for request = Fetch\b"
)


@dataclass(frozen=True, slots=True)
class BrokerKeys:
    """Files of a broker: PEM with its key and certificate, and PEM with the authority that all trust.

    The certificate's common name is the broker's principal, see `principal`; one of its names is `localhost`.
    """

    keystore: str
    ca: str


def principal(broker_id: int) -> str:
    """Return who a broker is for the others, by its SASL user or by its certificate's common name."""
    return f"broker-{broker_id}"


class SecuredCluster(KraftCluster):
    """Brokers with StandardAuthorizer, whose own principals are the only super users.

    - Brokers speak `protocol` with each other. SASL is SCRAM-SHA-512, with a session of `session_seconds`. TLS is with
      the certificate of each in `keys`; with SSL brokers ask each other for it.
    - With PLAINTEXT brokers have no principal: an ACL allows ClusterAction to User:ANONYMOUS from 127.0.0.1 alone.
    - Clients have the plaintext listener of every lab. They may all but ClusterAction there. With SASL, the user CLIENT
      may read and write every topic through the brokers' own listener too.
    - `ingress` has further keys of a sidecar's [[ingress]] by broker id.

    Other options: see Cluster.
    """

    def __init__(
        self,
        protocol: Protocol,
        keys: Mapping[int, BrokerKeys] | None = None,
        *,
        ingress: Mapping[int, Mapping[str, Any]] | None = None,
        session_seconds: int = 10,
        **options: Any,
    ) -> None:
        log = "-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=debug"
        super().__init__(jvm_flags=[log], **options)
        self._protocol = protocol
        self._keys = keys or {}
        self._session_seconds = session_seconds
        self._sidecar_options = replace(self._sidecar_options, ingress=ingress or {})

    def fetchers(self, broker_id: int) -> set[tuple[str, str]]:
        """Return whose fetches a broker allowed as another broker's so far: (principal, host)."""
        return {(found[1], found[2]) for found in _ALLOWED.finditer(self.brokers[broker_id].log.read_text())}

    def denials(self) -> list[str]:
        """Return the lines of all brokers' logs about something that was not allowed, or someone unknown."""
        wanted = re.compile(r"is Denied|[Aa]uthentication failed|[Ff]ailed (re-)?authentication|SSL handshake failed")
        lines = (line for broker in self.brokers.values() for line in broker.log.read_text().splitlines())
        return [line for line in lines if wanted.search(line)]

    def _start_once(self) -> None:
        super()._start_once()
        self._allow_clients()

    def _allow_clients(self) -> None:
        """Allow what clients need on the cluster; before the first rule on it, everything is allowed."""
        from kafka.admin import (
            ACL,
            ACLOperation,
            ACLPermissionType,
            KafkaAdminClient,
            ResourcePattern,
            ResourceType,
        )

        operations = ["CREATE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"]
        if self._protocol == "PLAINTEXT":
            operations.append("CLUSTER_ACTION")
        resource = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        try:
            admin.create_acls(
                [
                    ACL("User:ANONYMOUS", LOOPBACK, ACLOperation[name], ACLPermissionType.ALLOW, resource)
                    for name in operations
                ]
            )
        finally:
            admin.close()

    def _format_options(self) -> list[str]:
        if not self._protocol.startswith("SASL"):
            return []
        names = [*map(principal, self.broker_ids), CLIENT]
        users = (f"{SCRAM}=[name={name},password={PASSWORD}]" for name in names)
        return [word for user in users for word in ("--add-scram", user)]

    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        own = principal(place.broker_id)
        login = f'required username="{own}" password="{PASSWORD}"'
        users = " ".join(f'user_{principal(one)}="{PASSWORD}"' for one in self.broker_ids)
        kinds = f"CLIENT:PLAINTEXT,REPL:{self._protocol},CONTROLLER:SASL_PLAINTEXT"
        return {
            **super()._properties_of(place, data),
            "listener.security.protocol.map": kinds,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{principal(one)}" for one in self.broker_ids),
            "allow.everyone.if.no.acl.found": True,  # of topics and groups, and of the cluster before `_allow_clients`
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": f"{_LOGINS}.plain.PlainLoginModule {login} {users};",
            **(self._sasl(login) if self._protocol.startswith("SASL") else {}),
            **(self._tls(self._keys[place.broker_id]) if self._protocol.endswith("SSL") else {}),
        }

    def _sasl(self, login: str) -> dict[str, object]:
        return {
            "sasl.mechanism.inter.broker.protocol": SCRAM,
            "listener.name.repl.sasl.enabled.mechanisms": SCRAM,
            "listener.name.repl.scram-sha-512.sasl.jaas.config": f"{_LOGINS}.scram.ScramLoginModule {login};",
            "connections.max.reauth.ms": self._session_seconds * 1000,
        }

    def _tls(self, keys: BrokerKeys) -> dict[str, object]:
        tls = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": keys.keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": keys.ca,
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "ssl.client.auth": "required" if self._protocol == "SSL" else "none",
        }
        return {f"listener.name.repl.{name}": value for name, value in tls.items()}
