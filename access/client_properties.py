"""Kafka's client properties (`--command-config`, `[cluster] properties`), as options of kafka-python's clients.

The names are those of Kafka's own tools: AdminClientConfig, SaslConfigs and SslConfigs. Keys and certificates are PEM
files, as in KIP-651; a Java keystore can be read by Java alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS_OPTION = re.compile(r"""(?P<name>[\w.]+)\s*=\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)')""")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """A property cannot be used: `name` is its name, `reason` says why. Its value is not shown: it may be a secret."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} {self.reason}" if self.name else self.reason


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Options of a kafka-python client, and the properties that mean nothing to one, such as serializers."""

    options: Mapping[str, Any]
    ignored: tuple[str, ...]


def read_properties(path: Path) -> ClientProperties:
    """Read a properties file. PropertiesError says what cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PropertiesError("", f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PropertiesError("", f"{path} is no text in UTF-8") from error
    return client_options(parse_properties(text))


def parse_properties(text: str) -> dict[str, str]:
    """Read the text of a Java properties file (java.util.Properties)."""
    found = {}
    for line in _logical_lines(text):
        name, value = _split(line)
        found[_unescaped(name)] = _unescaped(value)
    return found


def client_options(properties: Mapping[str, str]) -> ClientProperties:
    """Turn Kafka's properties into options of a kafka-python client. PropertiesError says what cannot be used."""
    options: dict[str, Any] = {}
    ignored = []
    for name, value in properties.items():
        if name in _MAPPED:
            option, convert = _MAPPED[name]
            try:
                options[option] = convert(value.strip())
            except ValueError as error:
                raise PropertiesError(name, str(error)) from error
        elif name in _REFUSED:
            raise PropertiesError(name, _REFUSED[name])
        elif name not in _READ_BELOW:
            if name.startswith(("sasl.", "ssl.", "security.")):
                raise PropertiesError(
                    name, "is not known here, and to leave it out could make the connection less safe"
                )
            ignored.append(name)
    return ClientProperties(options | _tls(properties) | _sasl(properties, options), tuple(ignored))


def _sasl(properties: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    if not str(options.get("security_protocol", "")).startswith("SASL"):
        return {}
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism == "GSSAPI":
        if "keytab" in properties.get("sasl.jaas.config", "").lower():
            raise PropertiesError("sasl.jaas.config", "names a key tab, which cannot be used here: run kinit before")
        return {"sasl_mechanism": mechanism}
    if mechanism not in _PASSWORD_MECHANISMS:
        raise PropertiesError(
            "sasl.mechanism",
            f"is {mechanism}, which cannot be used here: {', '.join(_PASSWORD_MECHANISMS)} and GSSAPI can",
        )
    found = {
        match["name"]: _unescaped(match["double"]) if match["double"] is not None else match["single"]
        for match in _JAAS_OPTION.finditer(properties.get("sasl.jaas.config", ""))
    }
    if "username" not in found or "password" not in found:
        raise PropertiesError("sasl.jaas.config", 'has to have username="..." and password="..."')
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": found["username"],
        "sasl_plain_password": found["password"],
    }


def _tls(properties: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for store, names in (("truststore", ("ssl_cafile",)), ("keystore", ("ssl_certfile", "ssl_keyfile"))):
        location = properties.get(f"ssl.{store}.location")
        if location is None:
            continue
        kind = properties.get(f"ssl.{store}.type", "JKS").strip().upper()
        if kind != "PEM":
            raise PropertiesError(
                f"ssl.{store}.type",
                f"is {kind}, which Java alone can read: export it to a PEM file, and give ssl.{store}.type=PEM",
            )
        if not Path(location.strip()).is_file():
            raise PropertiesError(f"ssl.{store}.location", f"is {location.strip()}, and there is no such file")
        options |= dict.fromkeys(names, location.strip())
    if "ssl.key.password" in properties:
        options["ssl_password"] = properties["ssl.key.password"]
    return options


def _logical_lines(text: str) -> list[str]:
    lines = []
    held = ""
    for line in text.splitlines():
        stripped = line.lstrip(" \t\f")
        if not held and (not stripped or stripped[0] in "#!"):
            continue
        held += stripped
        if (len(held) - len(held.rstrip("\\"))) % 2:
            held = held[:-1]
            continue
        lines.append(held)
        held = ""
    return [*lines, held] if held else lines


def _split(line: str) -> tuple[str, str]:
    """Cut a line at its first separator that is not escaped: `=`, `:` or blanks."""
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:end], rest


def _unescaped(text: str) -> str:
    def char(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(char, text)


def _protocol(text: str) -> str:
    if text.upper() not in _PROTOCOLS:
        raise ValueError(f"has to be one of {', '.join(_PROTOCOLS)}")
    return text.upper()


def _milliseconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("has to be a whole number")
    return int(text)


def _checks_host_names(text: str) -> bool:
    if text.lower() not in ("", "https"):
        raise ValueError("has to be https, or empty")
    return text != ""


_MAPPED: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "security.protocol": ("security_protocol", _protocol),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _checks_host_names),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "client.id": ("client_id", str),
    "request.timeout.ms": ("request_timeout_ms", _milliseconds),
    "connections.max.idle.ms": ("connections_max_idle_ms", _milliseconds),
    "metadata.max.age.ms": ("metadata_max_age_ms", _milliseconds),
    "retry.backoff.ms": ("retry_backoff_ms", _milliseconds),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _milliseconds),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _milliseconds),
}

_IN_A_FILE: Final = "cannot be used here: put the PEM text into a file, and give its"
_REFUSED: Final = {
    "ssl.truststore.certificates": f"{_IN_A_FILE} ssl.truststore.location",
    "ssl.keystore.certificate.chain": f"{_IN_A_FILE} ssl.keystore.location",
    "ssl.keystore.key": f"{_IN_A_FILE} ssl.keystore.location",
    "ssl.truststore.password": "cannot be used here: a PEM file of certificates has none",
    "ssl.keystore.password": "cannot be used here: give ssl.key.password for the key in a PEM file",
}

_READ_BELOW: Final = {
    "sasl.mechanism",
    "sasl.jaas.config",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.key.password",
    # What Python's own TLS decides by itself, as safely.
    "ssl.protocol",
    "ssl.enabled.protocols",
}
