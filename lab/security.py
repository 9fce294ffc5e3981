# SPDX-License-Identifier: Apache-2.0
"""What brokers of a lab are told so that they speak TLS, SASL or both with each other, and authorize what is asked."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from weir.lab.broker import Broker
from weir.lab.sasl import PASSWORD, SCRAM, Mechanism, plain_login, sasl_properties, scram_login

Protocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]

CLIENT: Final = "a-client"
"""A SASL user that is no broker."""

AUTHORIZER_LOG: Final = "-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=debug"
"""A flag of a broker's JVM: it logs what it allows, too. `fetchers` needs it."""

_ALLOWED: Final = re.compile(
    r"Principal = User:(\S+) is Allowed operation = CLUSTER_ACTION from host = (\S+) .* for request = Fetch\b"
)
_REFUSED: Final = re.compile(r"is Denied|[Aa]uthentication failed|[Ff]ailed (re-)?authentication|SSL handshake failed")


@dataclass(frozen=True, slots=True)
class BrokerKeys:
    """Files of a broker: PEM with its key and certificate, and PEM with the authority that all trust.

    The certificate's common name is the broker's principal, see `principal`; it has the name or the address at which
    the others reach it.
    """

    keystore: str
    ca: str


def principal(broker_id: int) -> str:
    """Return who a broker is for the others, by its SASL user or by its certificate's common name."""
    return f"broker-{broker_id}"


def fetchers(broker: Broker) -> set[tuple[str, str]]:
    """Return whose fetches a broker allowed as another broker's so far: (principal, host)."""
    return {(found[1], found[2]) for found in _ALLOWED.finditer(broker.log.read_text())}


def denials(brokers: Collection[Broker]) -> list[str]:
    """Return the lines of the brokers' logs about something that was not allowed, or someone unknown."""
    lines = (line for broker in brokers for line in broker.log.read_text().splitlines())
    return [line for line in lines if _REFUSED.search(line)]


@dataclass(frozen=True)
class Security:
    """How brokers speak with each other, on a listener named REPL. Their own principals are the only super users.

    - SASL is SCRAM-SHA-512 with a session of `session_seconds`, or what `mechanisms` has for a broker that asks others.
      A broker's password is only known to its own mechanism. GSSAPI is Kerberos, with keys in the file `keytab`.
    - TLS is with the certificate of each in `keys`; with SSL brokers ask each other for it.
    - Clients have a plaintext listener of their own, named CLIENT. They may all but ClusterAction there, from
      `clients_host`. With PLAINTEXT brokers have no principal: an ACL allows ClusterAction to User:ANONYMOUS, too.
    """

    protocol: Protocol
    keys: Mapping[int, BrokerKeys] = field(default_factory=dict)
    session_seconds: int = 10
    mechanisms: Mapping[int, Mechanism] = field(default_factory=dict)
    keytab: str | None = None
    clients_host: str = "*"

    @property
    def has_sasl(self) -> bool:
        """Whether brokers have SASL users."""
        return self.protocol.startswith("SASL")

    def properties(self, broker_id: int, broker_ids: Sequence[int]) -> dict[str, object]:
        """Return the properties of a broker, but for its listeners."""
        own, users = principal(broker_id), [principal(one) for one in broker_ids]
        return {
            "listener.security.protocol.map": f"CLIENT:PLAINTEXT,REPL:{self.protocol},CONTROLLER:SASL_PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{principal(one)}" for one in broker_ids),
            "allow.everyone.if.no.acl.found": True,  # of topics and groups, and of the cluster before `allow_clients`
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": plain_login(own, users),
            **(self._sasl(broker_id, broker_ids) if self.has_sasl else {}),
            **(self._tls(self.keys[broker_id]) if self.protocol.endswith("SSL") else {}),
        }

    def client_properties(self, broker_id: int) -> dict[str, object]:
        """Return the properties with which a client is this broker on the listener between brokers."""
        found: dict[str, object] = {"security.protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            keys = self.keys[broker_id]
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": keys.ca}
        if self.protocol == "SSL":
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.keys[broker_id].keystore}
        if self.has_sasl:
            found |= {"sasl.mechanism": SCRAM, "sasl.jaas.config": scram_login(principal(broker_id))}
        return found

    def format_options(self, broker_ids: Sequence[int]) -> list[str]:
        """Return options of the tool that formats the controller's folder: the SASL users."""
        if not self.has_sasl:
            return []
        names = [*self._users_of(SCRAM, broker_ids), CLIENT]
        users = (f"{SCRAM}=[name={name},password={PASSWORD}]" for name in names)
        return [word for user in users for word in ("--add-scram", user)]

    def allow_clients(self, bootstrap_servers: Sequence[str]) -> None:
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
        if self.protocol == "PLAINTEXT":
            operations.append("CLUSTER_ACTION")
        resource = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
        admin = KafkaAdminClient(bootstrap_servers=list(bootstrap_servers))
        try:
            admin.create_acls(
                [
                    ACL("User:ANONYMOUS", self.clients_host, ACLOperation[name], ACLPermissionType.ALLOW, resource)
                    for name in operations
                ]
            )
        finally:
            admin.close()

    def _sasl(self, broker_id: int, broker_ids: Sequence[int]) -> dict[str, object]:
        own = self.mechanisms.get(broker_id, SCRAM)
        enabled = sorted({SCRAM, *self.mechanisms.values()})
        users = self._users_of("PLAIN", broker_ids)
        mechanisms = sasl_properties(own, enabled, principal(broker_id), users, self.keytab)
        return {**mechanisms, "connections.max.reauth.ms": self.session_seconds * 1000}

    def _users_of(self, mechanism: Mechanism, broker_ids: Sequence[int]) -> list[str]:
        return [principal(one) for one in broker_ids if self.mechanisms.get(one, SCRAM) == mechanism]

    def _tls(self, keys: BrokerKeys) -> dict[str, object]:
        tls = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": keys.keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": keys.ca,
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "ssl.client.auth": "required" if self.protocol == "SSL" else "none",
            # Compiled quickly (lab.java) it costs Java a quarter of what AES does, whose fast code only C2 has.
            "ssl.cipher.suites": "TLS_CHACHA20_POLY1305_SHA256",
        }
        return {f"listener.name.repl.{name}": value for name, value in tls.items()}
