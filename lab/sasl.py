# SPDX-License-Identifier: Apache-2.0
"""SASL between the brokers of a lab: what each mechanism needs of a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

Mechanism = Literal["SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "GSSAPI"]

SCRAM: Final = "SCRAM-SHA-512"
PASSWORD: Final = "of-these-brokers-alone"  # noqa: S105
SERVICE: Final = "kafka"
"""The first part of brokers' Kerberos principals; the second is the host by which others reach a broker."""

_LOGINS: Final = "org.apache.kafka.common.security"


def plain_login(user: str, users: Sequence[str]) -> str:
    """Return the JAAS entry of a broker that is `user` for others, and takes `users`."""
    taken = " ".join(f'user_{one}="{PASSWORD}"' for one in users)
    return f"{_LOGINS}.plain.PlainLoginModule required {_password(user)} {taken};"


def scram_login(user: str) -> str:
    """Return the JAAS entry of a broker or client; brokers find users in the cluster's metadata."""
    return f"{_LOGINS}.scram.ScramLoginModule required {_password(user)};"


def sasl_properties(
    own: Mechanism, enabled: Sequence[Mechanism], user: str, users: Sequence[str], keytab: str | None
) -> dict[str, object]:
    """Return a broker's properties: it takes all that are `enabled` on the listener REPL, and uses its `own` there.

    - `users` are those that PLAIN takes.
    - OAUTHBEARER is with Kafka's own unsecured tokens.
    - Of GSSAPI's principals, such as kafka/broker-1@REALM, the host is the user. `keytab` is a file with the broker's.
    """
    entries: Mapping[Mechanism, str] = {
        "PLAIN": plain_login(user, users),
        "SCRAM-SHA-512": scram_login(user),
        "OAUTHBEARER": f'{_LOGINS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{user}";',
        "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
        f' keyTab="{keytab}" principal="{SERVICE}/{user}";',
    }
    kerberos = {
        "sasl.kerberos.service.name": SERVICE,
        "sasl.kerberos.principal.to.local.rules": "RULE:[2:$2](broker-.*),DEFAULT",
    }
    return {
        "sasl.mechanism.inter.broker.protocol": own,
        "listener.name.repl.sasl.enabled.mechanisms": ",".join(enabled),
        **{f"listener.name.repl.{one.lower()}.sasl.jaas.config": entries[one] for one in enabled},
        **(kerberos if "GSSAPI" in enabled else {}),
    }


def _password(user: str) -> str:
    return f'username="{user}" password="{PASSWORD}"'
