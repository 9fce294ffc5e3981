# SPDX-License-Identifier: Apache-2.0
"""Puts the page together: one HTML document with its style and script inside, which may load nothing from elsewhere."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Final

_SCRIPTS: Final = ("texts.js", "chart.js", "side.js", "limits.js", "whole.js", "asking.js")
"""In the page they are one script: each uses what stands in those before it, and the last one begins."""


@functools.cache
def page() -> bytes:
    """Return the page. Nothing of this sidecar is in it: the script asks for that."""
    return _asset("page.html").replace("{{STYLE}}", _asset("page.css")).replace("{{SCRIPT}}", _script()).encode()


@functools.cache
def headers() -> dict[str, str]:
    """Return the page's headers: this style and this script may act, and may ask this sidecar alone.

    Should a topic's name ever be taken for markup, it could then neither run nor load anything.
    """
    style, script = _digest(_asset("page.css")), _digest(_script())
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


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    return "\n".join(map(_asset, _SCRIPTS))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
