# SPDX-License-Identifier: Apache-2.0
"""The tables with keys: TLS with followers, with brokers, and between sidecars."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from weir.proxy.config.reader import ConfigError, join
from weir.proxy.tls.keys import ClientAuth, KeyFiles, LeastVersion

KeyPath = Annotated[str, Meta(min_length=1, description="a path")]
NamePattern = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9._:*@ -]{1,253}\Z",
        description='a name in a certificate, or a pattern such as "*.kafka.internal"',
    ),
]
SidecarTlsMode = Literal["off", "prefer", "require"]


class KeyTable(msgspec.Struct, frozen=True, kw_only=True):
    """Files with a key and its certificate, and with the certificates that are trusted (`ca`).

    PEM: `certificate`, with the key in it or in `key`. PKCS12: `keystore`. `password_file` is for a locked key.
    """

    certificate: KeyPath | None = None
    key: KeyPath | None = None
    keystore: KeyPath | None = None
    password_file: KeyPath | None = None
    ca: KeyPath | None = None
    least_version: LeastVersion = "1.3"

    @property
    def files(self) -> KeyFiles:
        """The files as they are loaded."""
        return KeyFiles(**{name: getattr(self, name) for name in KeyTable.__struct_fields__})


class ServerTlsTable(KeyTable, frozen=True, kw_only=True):
    """TLS with those who connect to a listener, who take the sidecar for the broker.

    `client_auth` means what Kafka's `ssl.client.auth` means. `allowed_names` are those of the brokers.
    """

    client_auth: ClientAuth = "none"
    allowed_names: tuple[NamePattern, ...] | None = None


class ClientTlsTable(KeyTable, frozen=True, kw_only=True):
    """TLS with an upstream. What is left out is as in the table `tls` beside it: the same key, the same `ca`.

    `server_name` is the name that the upstream's certificate has to have; "" takes any.
    """

    server_name: str | None = None


class PeersTlsTable(ClientTlsTable, frozen=True, kw_only=True):
    """TLS with several upstreams. With `allowed_names`, one of these counts instead of the address connected to."""

    allowed_names: tuple[NamePattern, ...] | None = None


class SidecarTlsTable(KeyTable, frozen=True, kw_only=True):
    """TLS between sidecars, around what their brokers speak. `allowed_names` are those in sidecars' certificates.

    `strict` says how all certificates are judged, whoever shows them. `workers` processes end and begin all TLS of
    routes; 0: this one. The table may have these two alone.
    """

    allowed_names: tuple[NamePattern, ...] = ()
    mode: Literal["prefer", "require"] = "prefer"
    strict: bool | None = None
    workers: Annotated[int, Meta(ge=0, le=64)] | None = None

    @property
    def is_between_sidecars(self) -> bool:
        """Whether it asks for TLS between sidecars, and does not only say how TLS is done."""
        rest = msgspec.structs.replace(self, strict=None, workers=None)
        return rest == self or rest != SidecarTlsTable()


class AdminTlsTable(KeyTable, frozen=True, kw_only=True):
    """TLS of the admin HTTP. The names are those in the certificates of who may read, and of who may change too.

    Sidecars ask each other with their own certificates, so `write_names` has their names as well.
    """

    read_names: tuple[NamePattern, ...] = ()
    write_names: tuple[NamePattern, ...] = ()


def check_server_tls(table: ServerTlsTable, upstream: ClientTlsTable | None, path: str) -> None:
    """Check a route's two tables; ConfigError names the field."""
    _check_own(table, path)
    if table.client_auth != "none":
        _check_ca(table, path)
    if table.allowed_names is not None and table.client_auth != "required":
        raise ConfigError(join(path, "allowed_names"), 'needs client_auth = "required": else there may be no name')
    if upstream is None:
        return
    upstream_path = path.removesuffix("tls") + "upstream_tls"
    _check_files(upstream, upstream_path)
    if table.ca is None:
        _check_ca(upstream, upstream_path)
    if table.client_auth != "required" and upstream.files.has_certificate:
        reason = f'needs {path} client_auth = "required": else whoever connects would be a broker for the upstream'
        raise ConfigError(upstream_path, reason)
    if table.client_auth == "required" and not table.allowed_names:
        reason = "is missing: for the upstream all who pass are this broker, so name the certificates of brokers"
        raise ConfigError(join(path, "allowed_names"), reason)


def upstream_files(table: ServerTlsTable, upstream: ClientTlsTable) -> KeyFiles:
    """Return what is used with an upstream: its own files, and what is left out from the listener's."""
    own = upstream.files
    ca = own.ca or table.ca
    if own.has_certificate or table.client_auth != "required":
        return msgspec.structs.replace(upstream, ca=ca).files
    return msgspec.structs.replace(table, ca=ca, least_version=upstream.least_version).files


def check_sidecar_tls(table: SidecarTlsTable, path: str = "tls") -> None:
    """Check `[tls]`; ConfigError names the field."""
    _check_own(table, path)
    _check_ca(table, path)
    if not table.allowed_names:
        reason = 'is missing: it has the names in the certificates of sidecars ("*": all that the ca has signed)'
        raise ConfigError(join(path, "allowed_names"), reason)


def check_admin_tls(table: AdminTlsTable, path: str) -> None:
    """Check `[admin.tls]`; ConfigError names the field."""
    _check_own(table, path)
    _check_ca(table, path)
    if not table.write_names:
        raise ConfigError(join(path, "write_names"), "is missing: it has the names in the certificates of sidecars")


def _check_own(table: KeyTable, path: str) -> None:
    _check_files(table, path)
    if not table.files.has_certificate:
        raise ConfigError(join(path, "certificate"), "is missing, and so is keystore: TLS needs a key")


def _check_ca(table: KeyTable, path: str) -> None:
    if table.ca is None:
        raise ConfigError(join(path, "ca"), "is missing: it says whose certificates are trusted")


def _check_files(table: KeyTable, path: str) -> None:
    for field, needed in _TOGETHER:
        if getattr(table, field) is not None and not any(getattr(table, other) for other in needed):
            raise ConfigError(join(path, field), f"needs {' or '.join(needed)} beside it")
    if table.keystore is not None and table.certificate is not None:
        raise ConfigError(join(path, "keystore"), "cannot be used with certificate: give one of the two")


_TOGETHER: Final = (("key", ("certificate",)), ("password_file", ("certificate", "keystore")))
