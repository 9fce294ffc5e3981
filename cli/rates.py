# SPDX-License-Identifier: Apache-2.0
"""Rates as people type them, to bytes/s."""

from __future__ import annotations

import re
from decimal import Decimal

_RATE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[a-z]*)(?:/s)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}

MAX_RATE = 2**63 - 1


def parse_rate(text: str) -> int:
    """Return the bytes/s of `5000000`, `500k`, `5M`, `5MB` or `5MiB` (k is 1000, Ki is 1024); else ValueError.

    `5Mb` is refused: networks are sold in such bits, and elsewhere the same letters are bytes.
    """
    match = _RATE.fullmatch(text.strip())
    scale = None if match is None else _UNITS.get(match["unit"].casefold())
    if match is None or scale is None:
        raise ValueError(f"{text!r} is not a rate: give bytes/s as in 5000000, 500k, 5MB or 5MiB")
    if len(match["unit"]) > 1 and match["unit"].endswith("b"):
        raise ValueError(f"{text!r} may be bits or bytes: give bytes/s with a large B, as in 5MB")
    rate = Decimal(match["number"]) * scale
    if rate > MAX_RATE:
        raise ValueError(f"{text!r} is more than {MAX_RATE} bytes/s")
    if rate != int(rate):
        raise ValueError(f"{text!r} is not a whole number of bytes/s")
    return int(rate)
