# SPDX-License-Identifier: Apache-2.0
"""What is said where a broker refuses to authenticate a client. A password is never part of it."""

from __future__ import annotations

from collections.abc import Mapping


def authentication_refused(options: Mapping[str, object], reason: str) -> str:
    """Return a sentence without a full stop. `options` are a client's, `reason` is what the broker said."""
    mechanism = options.get("sasl_mechanism")
    user = options.get("sasl_plain_username")
    who = f"User:{user}" if user else "the principal of the Kerberos ticket"
    said = f": {reason.rstrip('.')}" if reason else ""
    return f"the broker refuses to authenticate {who} by {mechanism}{said}"
