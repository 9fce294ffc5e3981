# SPDX-License-Identifier: Apache-2.0
"""`weir webhook`: gives pods a sidecar when they are created."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.errors import DONE, WRONG_USAGE, CommandError
from weir.cli.options import parse_given


def webhook(
    sidecar: Annotated[Path, typer.Option("--sidecar", metavar="FILE", help="What pods get (JSON).")],
    certificate: Annotated[Path, typer.Option("--certificate", metavar="FILE", help="The server's (PEM).")],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="Its key (PEM).")],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT")] = "0.0.0.0:9443",
) -> int:
    """Serve Kubernetes' admission webhook, which gives pods a sidecar, until SIGTERM (before Kubernetes 1.36)."""
    from weir.control.injection import InjectionError, read_sidecar, serve
    from weir.proxy.config.address import Address

    address = parse_given("--listen", Address.parse, listen)
    try:
        serve(address.host, address.port, certificate, key, read_sidecar(sidecar))
    except InjectionError as error:
        raise CommandError(str(error), WRONG_USAGE) from error
    return DONE
