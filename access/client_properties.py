# SPDX-License-Identifier: Apache-2.0
"""Kafka's client properties (`--command-config`, `[cluster] properties`), as options of kafka-python's clients.

The names are those of Kafka's own tools: AdminClientConfig, SaslConfigs and SslConfigs. Keys and certificates are PEM
files, as in KIP-651; a Java keystore can be read by Java alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from weir.access.jaas import login_options

_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ESCAPE = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
_HEXADECIMAL = re.compile(r"u[0-9a-fA-F]{4}")
_FROM_DIRECTORY = re.compile(r"\$\{directory:([^:}]+):([^:}]+)\}")  # KIP-421, with Kafka's DirectoryConfigProvider
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_Value = TypeVar("_Value")


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
    """Read the text of a Java properties file (java.util.Properties). PropertiesError for what Java refuses."""
    found = {}
    for line in _logical_lines(text):
        name, value = _split(line)
        try:
            found[_unescaped(name)] = _unescaped(value)
        except ValueError:
            raise PropertiesError(name, "has a \\u without four hexadecimal digits: write \\\\ for one \\") from None
    return found


def client_options(properties: Mapping[str, str]) -> ClientProperties:
    """Turn Kafka's properties into options of a kafka-python client. PropertiesError says what cannot be used.

    As with kafka-clients, what is set of TLS or SASL counts only where `security.protocol` uses it.
    """
    options: dict[str, Any] = {}
    ignored = []
    protocol = _converted("security.protocol", properties.get("security.protocol", "PLAINTEXT"), _protocol)
    unused = tuple(prefix for prefix, used in (("sasl.", "SASL"), ("ssl.", "SSL")) if used not in protocol.split("_"))
    used = {name: value for name, value in properties.items() if not name.startswith(unused)}
    secured = {**_sasl(used, protocol), **_tls(used)}  # before single names, as these say why a file cannot be used
    for name, value in properties.items():
        if name not in used:
            ignored.append(name)
        elif name in _MAPPED:
            option, convert = _MAPPED[name]
            options[option] = _converted(name, value, convert)
        elif name in _REFUSED and secured.get(_IN_FILES.get(name, "")) is None:
            raise PropertiesError(name, _REFUSED[name])
        elif name not in _READ_BELOW and name not in _IN_FILES:
            if name.startswith(("sasl.", "ssl.", "security.")):
                raise PropertiesError(
                    name, "is not known here, and to leave it out could make the connection less safe"
                )
            ignored.append(name)
    return ClientProperties(options | secured, tuple(ignored))


def _converted(name: str, value: str, convert: Callable[[str], _Value]) -> _Value:
    try:
        return convert(value.strip())
    except ValueError as error:
        raise PropertiesError(name, str(error)) from error


def _sasl(properties: Mapping[str, str], protocol: str) -> dict[str, Any]:
    if not protocol.startswith("SASL"):
        return {}
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in (*_PASSWORD_MECHANISMS, "GSSAPI"):
        why = _OTHER_MECHANISMS.get(mechanism, "which is not known here")
        raise PropertiesError("sasl.mechanism", f"is {mechanism}, {why}: {_OTHER_WAY}")
    jaas = properties.get("sasl.jaas.config")
    found = {} if jaas is None else _converted("sasl.jaas.config", jaas, login_options)
    if mechanism == "GSSAPI":
        if "keytab" in map(str.lower, found):
            raise PropertiesError("sasl.jaas.config", "names a key tab, which cannot be used here: run kinit before")
        return {"sasl_mechanism": mechanism}
    if "username" not in found or "password" not in found:
        raise PropertiesError("sasl.jaas.config", 'has to have username="..." and password="..."')
    if found.get("tokenauth", "").lower() == "true" and mechanism != "PLAIN":
        reason = "has tokenauth, a delegation token, which cannot be used here: give a user's own name and password"
        raise PropertiesError("sasl.jaas.config", reason)
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": found["username"],
        "sasl_plain_password": found["password"],
    }


def _tls(properties: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {
        option: str(Path(found[1], found[2]))
        for name, option in _IN_FILES.items()
        if (found := _FROM_DIRECTORY.fullmatch(properties.get(name, "").strip())) is not None
    }
    for store, names in (("truststore", ("ssl_cafile",)), ("keystore", ("ssl_certfile", "ssl_keyfile"))):
        location = properties.get(f"ssl.{store}.location")
        if location is None:
            continue
        kind_name = f"ssl.{store}.type"
        kind = properties.get(kind_name, "").strip().upper()
        if kind != "PEM":
            name, words = (kind_name, kind) if kind else (f"ssl.{store}.location", "of Kafka's default type, JKS")
            raise PropertiesError(
                name, f"is {words}, which Java alone can read: {_TO_PEM[store]}, and give {kind_name}=PEM"
            )
        if not Path(location.strip()).exists():
            raise PropertiesError(f"ssl.{store}.location", f"is {location.strip()}, and there is no such file")
        options |= dict.fromkeys(names, location.strip())
    if "ssl.key.password" in properties:
        options["ssl_password"] = properties["ssl.key.password"]
    return options


def _logical_lines(text: str) -> list[str]:
    lines = []
    held = ""
    for line in re.split(r"\r\n|\r|\n", text):
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
        if escaped[0] != "u":
            return _ESCAPED.get(escaped, escaped)
        if _HEXADECIMAL.fullmatch(escaped) is None:
            raise ValueError
        return chr(int(escaped[1:], 16))

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

_OTHER_MECHANISMS: Final = {
    "AWS_MSK_IAM": "which takes Amazon's library for Java",
    "OAUTHBEARER": "whose tokens a class of Java's fetches",
}
_OTHER_WAY: Final = (
    "give a user of its own with SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN, a ticket (GSSAPI), or a certificate"
    " (security.protocol=SSL)"
)
_TO_PEM: Final = {
    "truststore": "write it as PEM (keytool -list -rfc -keystore FILE > ca.pem)",
    "keystore": "write it as PEM (keytool -importkeystore to a PKCS12 file, then openssl pkcs12 -nodes)",
}

_IN_FILES: Final = {
    "ssl.truststore.certificates": "ssl_cafile",
    "ssl.keystore.certificate.chain": "ssl_certfile",
    "ssl.keystore.key": "ssl_keyfile",
}
_IN_A_FILE: Final = "cannot be used here: put the PEM text into a file, and give ${directory:FOLDER:FILE}, or"
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
