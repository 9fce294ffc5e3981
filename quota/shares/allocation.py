"""How a rate is divided by demand: nobody gets more than it wants while another one wants more than it gets."""

from __future__ import annotations

from collections.abc import Mapping


def allocate(rate: float, demands: Mapping[int, float]) -> dict[int, float]:
    """Divide `rate` among those with a demand (bytes/s): equally, but nobody gets more than it wants.

    What is left when all have what they want goes to all of them equally: they need not ask before they use more.
    """
    wanting = sorted((demand, member) for member, demand in demands.items() if demand > 0)
    left, parts = rate, {}
    for number, (demand, member) in enumerate(wanting):
        parts[member] = min(demand, left / (len(wanting) - number))
        left -= parts[member]
    extra = max(0.0, left) / len(wanting) if wanting else 0.0
    return {member: part + extra for member, part in parts.items()}
