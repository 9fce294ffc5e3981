"""The options of a sidecar's connections to Kafka, from the files with client properties that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weir.access.client_properties import PropertiesError, read_properties
from weir.access.tls_contexts import properties_context
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Cluster, KafkaExport


def connection_options(table: Cluster | KafkaExport, *, strict: bool) -> dict[str, Any]:
    """Return options of aiokafka's connections; ConfigError says what cannot be used. It reads files.

    `strict` is that of `[tls]`.
    """
    if table.properties is None:
        return {}
    try:
        options = read_properties(Path(table.properties)).options
        protocol = options.get("security_protocol", "PLAINTEXT")
        if options.get("sasl_mechanism") == "GSSAPI":
            raise PropertiesError("sasl.mechanism", "is GSSAPI (Kafka's default), which a sidecar cannot use")
        found = {"security_protocol": protocol}
        found |= {name: value for name, value in options.items() if name.startswith(("sasl_mechanism", "sasl_plain"))}
        if protocol.endswith("SSL"):
            found["ssl_context"] = properties_context(options, strict=strict)
        return found
    except PropertiesError as error:
        name = "cluster" if isinstance(table, Cluster) else "export.kafka"
        raise ConfigError(f"{name}.properties", str(error)) from error
