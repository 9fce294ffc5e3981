"""Puts the page together: one HTML document with its style and script inside, which may load nothing from elsewhere."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def page() -> bytes:
    """Return the page. Nothing of this sidecar is in it: the script asks for that."""
    html = _asset("page.html")
    for name, of in (("page.css", "STYLE"), ("page.js", "SCRIPT")):
        html = html.replace(f"{{{{{of}}}}}", _asset(name))
    return html.encode()


@functools.cache
def headers() -> dict[str, str]:
    """Return the page's headers: this style and this script may act, and may ask this sidecar alone.

    Should a topic's name ever be taken for markup, it could then neither run nor load anything.
    """
    style, script = (_digest(_asset(name)) for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
