# SPDX-License-Identifier: Apache-2.0
"""How the sidecars of a cluster open each other: each signs what it asks with the token that all of them have.

A sidecar asks the hosts that the cluster's metadata names, and anybody may listen there. So the token itself is never
sent: a signature opens one request, at the sidecar of one broker, for VALID_SECONDS.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

SCHEME: Final = "Weir"
"""That of the `Authorization` header."""

OPENED: Final = frozenset({("POST", "/v1/shares"), ("GET", "/v1/status")})
"""What a signature can open: all that sidecars ask each other."""

VALID_SECONDS: Final = 30.0
"""How far the clocks of two sidecars may be apart."""

_PURPOSE: Final = b"weir: what sidecars ask each other"
_FORM: Final = re.compile(r"to=(\d{1,10}|any) at=(\d{1,12}) body=([0-9a-f]{64}) mac=([0-9a-f]{64})")


class Sign(Protocol):
    """Returns the headers that open another sidecar; `to` is its broker's id, None where its answer is to tell it."""

    def __call__(self, method: str, path: str, body: bytes, to: int | None) -> dict[str, str]: ...


class Signature(NamedTuple):
    """What somebody says to have signed, and `mac`, which shows it. `body` is a digest."""

    to: str
    at: str
    body: str
    mac: str

    @classmethod
    def parse(cls, text: str) -> Signature | None:
        """Read what follows the scheme; None where it has another form."""
        match = _FORM.fullmatch(text)
        return None if match is None else cls(*match.groups())

    def fits(self, secrets: Iterable[bytes], method: str, path: str, own_id: int, now: float) -> bool:
        """Whether one of the tokens signed this request, for this broker's sidecar and now (Unix seconds)."""
        if self.to not in ("any", str(own_id)) or abs(now - int(self.at)) > VALID_SECONDS:
            return False
        said = _said(method, path, self.to, self.at, self.body)
        return any([hmac.compare_digest(_mac(secret, said), self.mac) for secret in secrets])

    def covers(self, body: bytes) -> bool:
        """Whether this body is the one that was signed."""
        return hashlib.sha256(body).hexdigest() == self.body


def signed(secret: bytes, method: str, path: str, body: bytes, to: int | None, now: float) -> dict[str, str]:
    """Return the headers of a request that is signed at `now` (Unix seconds), as `Sign` does."""
    receiver, at, digest = "any" if to is None else str(to), str(int(now)), hashlib.sha256(body).hexdigest()
    mac = _mac(secret, _said(method, path, receiver, at, digest))
    return {"Authorization": f"{SCHEME} to={receiver} at={at} body={digest} mac={mac}"}


def unsigned(method: str, path: str, body: bytes, to: int | None) -> dict[str, str]:
    """Return no headers: as `Sign` does where there is no token."""
    return {}


def _said(*parts: str) -> bytes:
    return "\n".join(parts).encode()


def _mac(secret: bytes, said: bytes) -> str:
    key = hmac.digest(secret, _PURPOSE, "sha256")  # of its own, so that no other use of the token fits
    return hmac.digest(key, said, "sha256").hex()
