"""How one route's two connections use TLS."""

from __future__ import annotations

from dataclasses import dataclass

from weir.proxy.tls.live_keys import LiveKeys


@dataclass(frozen=True, slots=True)
class TlsServer:
    """TLS with those who connect to a listener.

    - `allowed_names`: the names of which a client's certificate has to have one; None: any name, or no certificate.
    - `takes_plaintext`: whether a client may also speak without TLS.
    """

    keys: LiveKeys
    allowed_names: tuple[str, ...] | None = None
    takes_plaintext: bool = False


@dataclass(frozen=True, slots=True)
class TlsClient:
    """TLS with an upstream.

    - `server_name`: the name that its certificate has to have; None: the host that is connected to. Where
      `allowed_names` are given, one of these counts instead.
    - `falls_back`: whether to go on without TLS where the upstream does not speak it.
    """

    keys: LiveKeys
    server_name: str | None = None
    allowed_names: tuple[str, ...] | None = None
    falls_back: bool = False
