"""TLS of the admin HTTP: with those who ask this sidecar, and with the other sidecars that it asks itself."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from weir.proxy.config.reader import ConfigError, join
from weir.proxy.config.tls import AdminTlsTable, check_admin_tls
from weir.proxy.tls.keys import KeyFiles, Keys, KeysError, fits, load_client_keys, load_server_keys, names_in
from weir.proxy.tls.live_keys import LiveKeys

Right = Literal["read", "write"]

_FIELD = "admin.tls"


class AdminKeys:
    """The keys of `[admin.tls]`; `strict` is that of `[tls]`. Making it reads files, and may raise ConfigError."""

    def __init__(self, table: AdminTlsTable, *, strict: bool) -> None:
        check_admin_tls(table, _FIELD)
        self._table = table
        self._files = files = replace(table.files, strict=strict)
        try:
            # a client needs no certificate for its health to be asked; what else it may do, its request is judged by
            self._server = LiveKeys(_FIELD, files, partial(load_server_keys, files, "requested"))
            self._client = LiveKeys(_FIELD, files, partial(_load_sidecar_keys, files, table.write_names))
        except KeysError as error:
            raise ConfigError(join(_FIELD, error.field), error.reason) from error
        self.all_keys = (self._server, self._client)
        """To be watched."""

    def server_context(self) -> ssl.SSLContext:
        """Return what to listen with. A handshake that begins after the keys have changed uses the new ones."""
        context = load_server_keys(self._files, "requested").context
        context.sni_callback = self._use_newest
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return what to ask another sidecar with. Its certificate has to have one of `write_names`."""
        return self._client.keys.context

    def right_of(self, certificate: Mapping[str, Any] | None) -> Right | None:
        """Return what the owner of a certificate may do, as SSLSocket.getpeercert has it; None: nothing."""
        if fits(certificate, self._table.write_names):
            return "write"
        return "read" if fits(certificate, self._table.read_names) else None

    def _use_newest(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._server.keys.context


def owner_of(certificate: Mapping[str, Any] | None) -> str:
    """Return the name that a change is logged with."""
    return next(iter(names_in(certificate)), "a certificate without a name")


def _load_sidecar_keys(files: KeyFiles, names: tuple[str, ...]) -> Keys:
    class SidecarsAlone(ssl.SSLObject):
        """Addresses change, and sidecars ask each other by them: the names are compared with those allowed."""

        def do_handshake(self) -> None:
            super().do_handshake()
            if not fits(self.getpeercert(), names):
                found = ", ".join(names_in(self.getpeercert())) or "none"
                raise ssl.SSLCertVerificationError(f"admin.tls write_names has none of its names: {found}")

    keys = load_client_keys(files, checks_name=False)
    keys.context.sslobject_class = SidecarsAlone
    return keys
