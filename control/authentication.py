# SPDX-License-Identifier: Apache-2.0
"""Ends connections that a broker refuses to authenticate: kafka-python tries them again until its timeout."""

from __future__ import annotations

from typing import Any

from kafka.errors import SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from kafka.net.compat import KafkaNetClient

from weir.access.refusals import authentication_refused

REFUSALS = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)


def client_that_ends_when_refused(**configs: Any) -> Any:
    """Return a network client for kafka-python's option `kafka_client`.

    Its second connection to a broker that has refused the first raises SaslAuthenticationFailedError with a sentence.
    """
    client = KafkaNetClient(**configs)
    manager = client._manager
    connect = manager.get_connection
    refused: dict[object, str] = {}

    def get_connection(node_id: object, **options: Any) -> Any:
        if node_id in refused:
            raise SaslAuthenticationFailedError(refused[node_id])
        connection = connect(node_id, **options)

        def remember(error: Exception) -> None:
            if isinstance(error, REFUSALS):
                reason = str(error.args[0]) if error.args else ""
                reason = reason.removeprefix(f"{SaslAuthenticationFailedError.__name__}: ")
                refused[node_id] = authentication_refused(configs, reason)

        connection.init_future.add_errback(remember)
        return connection

    manager.get_connection = get_connection
    return client
