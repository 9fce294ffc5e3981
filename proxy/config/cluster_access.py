"""The options of connections to the cluster, from the file with Kafka's client properties that `[cluster]` names."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.access.client_properties import PropertiesError, read_properties
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Cluster

_FIELD = "cluster.properties"


def connection_options(cluster: Cluster) -> dict[str, Any]:
    """Return options of aiokafka's connections; ConfigError says what cannot be used. It reads files."""
    if cluster.properties is None:
        return {}
    try:
        options = read_properties(Path(cluster.properties)).options
        protocol = options.get("security_protocol", "PLAINTEXT")
        if options.get("sasl_mechanism") == "GSSAPI":
            raise PropertiesError("sasl.mechanism", "is GSSAPI (Kafka's default), which a sidecar cannot use")
        found = {"security_protocol": protocol}
        found |= {name: value for name, value in options.items() if name.startswith(("sasl_mechanism", "sasl_plain"))}
        return found | {"ssl_context": _tls(options)} if protocol.endswith("SSL") else found
    except PropertiesError as error:
        raise ConfigError(_FIELD, str(error)) from error


def _tls(options: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_cafile"))
    except (OSError, ValueError) as error:
        raise PropertiesError(
            "ssl.truststore.location", f"has no certificates in PEM form: {_reason(error)}"
        ) from error
    context.check_hostname = options.get("ssl_check_hostname", True)
    if "ssl_certfile" in options:
        # without a callback a locked key would be asked for on the terminal
        password = options.get("ssl_password", "")
        try:
            context.load_cert_chain(options["ssl_certfile"], options["ssl_keyfile"], lambda: password)
        except (OSError, ValueError) as error:
            reason = f"has no certificate with its key in PEM form, or ssl.key.password is wrong: {_reason(error)}"
            raise PropertiesError("ssl.keystore.location", reason) from error
    return context


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
