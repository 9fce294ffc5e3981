"""Whether a throttle was set for a while, by people and their tools, and may have been forgotten."""

from __future__ import annotations

import math

from weir.proxy.config.tables import QuotaTable
from weir.quota.layers import EffectiveThrottle, Part, Path
from weir.quota.settings import SideName


def is_set_by_hand(effective: EffectiveThrottle, side: SideName) -> bool:
    """Whether a part in force on this side is neither the file's, which stands there on purpose, nor ends by itself."""
    return any(
        part.source != "file" and part.lease.expires_at == math.inf and _is_of(side, path, part)
        for path, part in effective.parts.items()
    )


def _is_of(side: SideName, path: Path, part: Part) -> bool:
    """Whether a part is a rate, a list of replicas or a quota of this side."""
    if isinstance(part.value, QuotaTable):
        return part.value.side == side
    return path[-1].startswith(f"{side}.")
