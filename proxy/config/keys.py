# SPDX-License-Identifier: Apache-2.0
"""What TLS each route and the admin HTTP use, with its keys loaded, and how a sidecar connects to Kafka itself."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from weir.access.client_properties import PropertiesError, read_properties
from weir.access.tls_contexts import properties_context
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError, join
from weir.proxy.config.tables import CaptureTable, Cluster, Config, Egress, Ingress, KafkaExport
from weir.proxy.config.tls import (
    AdminTlsTable,
    ClientTlsTable,
    PeersTlsTable,
    ServerTlsTable,
    SidecarTlsTable,
    check_admin_tls,
    check_server_tls,
    check_sidecar_tls,
    upstream_files,
)
from weir.proxy.tls.keys import KeyFiles, Keys, KeysError, fits, load_client_keys, load_server_keys, names_in
from weir.proxy.tls.live_keys import LiveKeys, TlsClient, TlsServer

RouteTls = tuple[TlsServer | None, TlsClient | None]
"""What is used with those who connect to a listener, and with its upstream."""

_NO_TLS: RouteTls = (None, None)


class RouteKeys:
    """The keys of all routes. Making it reads files, and raises ConfigError for what cannot be used."""

    def __init__(self, config: Config) -> None:
        self.all_keys: list[LiveKeys] = []
        """The keys of all routes, each once: a KeyWatch looks at their files."""
        self._sidecar: tuple[TlsServer, TlsClient] | None = None
        self._strict = config.strict_tls
        table = config.sidecar_tls
        if table is not None:
            check_sidecar_tls(table)
            self._sidecar = self._between_sidecars(table)
        self._mode = "off" if table is None else table.mode
        self.ingress = [self._route(route, f"ingress[{index}]") for index, route in enumerate(config.ingress)]
        self.egress = [self._route(route, f"egress[{index}]") for index, route in enumerate(config.egress)]
        self.captured_ingress, self.captured_egress = _NO_TLS, _NO_TLS
        if config.capture is not None:
            self.captured_ingress = self._route(config.capture, "capture")
            if config.capture.peer_tls is not None:
                tables = config.capture.peer_tls, config.capture.peer_upstream_tls
                self.captured_egress = self._ended(*tables, "capture.peer_tls", is_ingress=False)
            elif self._sidecar is not None:
                self.captured_egress = (None, self._sidecar[1])

    def with_brokers(self, upstreams: Sequence[Address]) -> dict[Address, TlsClient]:
        """Return what is used with the upstreams of the ingress routes, which are `upstreams`, where TLS is."""
        pairs = zip(upstreams, self.ingress, strict=True)
        return {address: client for address, (_, client) in pairs if client is not None}

    def _route(self, route: Ingress | Egress | CaptureTable, path: str) -> RouteTls:
        mode = None if isinstance(route, CaptureTable) else route.sidecar_tls
        if mode is not None and self._sidecar is None:
            raise ConfigError(join(path, "sidecar_tls"), "needs [tls]: the keys between sidecars")
        if route.tls is not None:
            is_ingress = not isinstance(route, Egress)
            return self._ended(route.tls, route.upstream_tls, join(path, "tls"), is_ingress=is_ingress)
        if route.upstream_tls is not None:
            reason = f"needs {path}.tls: else whoever connects without TLS would be a broker for the upstream"
            raise ConfigError(join(path, "upstream_tls"), reason)
        if self._sidecar is None or mode == "off":
            return _NO_TLS
        server, client = self._sidecar
        requires = (mode or self._mode) == "require"
        if isinstance(route, Egress):
            return None, TlsClient(client.keys, allowed_names=client.allowed_names, falls_back=not requires)
        return TlsServer(server.keys, server.allowed_names, takes_plaintext=not requires), None

    def _ended(
        self, table: ServerTlsTable, upstream: ClientTlsTable | None, field: str, *, is_ingress: bool
    ) -> RouteTls:
        """Return what a route uses that ends TLS itself: with the broker's own key, or with one of its peer's name."""
        check_server_tls(table, upstream, field)
        keys = self._load(field, table.files, partial(load_server_keys, client_auth=table.client_auth))
        server = TlsServer(keys, table.allowed_names)
        if upstream is None:
            return server, None
        field = field.removesuffix("tls") + "upstream_tls"
        files = upstream_files(table, upstream)
        name = upstream.server_name
        names = upstream.allowed_names if isinstance(upstream, PeersTlsTable) else None
        checks_name = name != "" and names is None
        client_keys = self._load(field, files, partial(load_client_keys, checks_name=checks_name))
        if name is None and is_ingress:
            # the listener has the broker's own certificate, with the name that the broker has
            name = next((own for own in keys.keys.names if "*" not in own), None)
        return server, TlsClient(client_keys, name or None, names)

    def _between_sidecars(self, table: SidecarTlsTable) -> tuple[TlsServer, TlsClient]:
        files, names = table.files, table.allowed_names
        is_optional = table.mode == "prefer"
        server = self._load("tls", files, partial(load_server_keys, client_auth="required"))
        client = self._load("tls", files, partial(load_client_keys, checks_name=False))
        return TlsServer(server, names, is_optional), TlsClient(client, None, names, is_optional)

    def _load(self, field: str, files: KeyFiles, load: Callable[[KeyFiles], Keys]) -> LiveKeys:
        files = replace(files, strict=self._strict)
        try:
            keys = LiveKeys(field, files, partial(load, files))
        except KeysError as error:
            raise ConfigError(join(field, error.field), error.reason) from error
        self.all_keys.append(keys)
        return keys


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
        """Those of both ends, for a KeyWatch."""

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
