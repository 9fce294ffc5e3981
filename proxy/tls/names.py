"""Whose certificates are taken, by the names in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the DNS names and addresses of a certificate, as `SSLSocket.getpeercert` has it, and its common name."""
    if not certificate:
        return ()
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(dict.fromkeys([*names, *common]))


def fits(certificate: Mapping[str, Any] | None, allowed: Iterable[str]) -> bool:
    """Return whether one of a certificate's names is allowed.

    `allowed` has names, and patterns with `*`. A name with `*` in the certificate itself is compared as a text: nobody
    can be let in by a pattern of their own.
    """
    names = [name.casefold() for name in names_in(certificate)]
    return any(fnmatchcase(name, pattern.casefold()) for pattern in allowed for name in names)
