# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a sidecar itself, in sentences for the status and as 0 or 1 for the metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from weir.proxy.admin.exposition import Family, gauge
from weir.proxy.admin.metrics import ProcessStats
from weir.proxy.event_loop import is_saturated

FULL: Final = 0.9
"""A table of the kernel that is filled to this part counts as full: it fills in seconds."""

KINDS: Final = ("config_refused", "conntrack_full", "not_started", "paused", "samples_lost", "saturated")
RUNBOOK: Final = "docs/operations.md#weirtrouble"

_NETFILTER: Final = Path("/proc/sys/net/netfilter")


class Connections(NamedTuple):
    """How many connections the kernel tracks in this network namespace, and how many it may."""

    tracked: int
    most: int


def connections_tracked(folder: Path = _NETFILTER) -> Connections | None:
    """Return how many connections the kernel tracks; None where it tracks none, or may not be asked."""
    try:
        tracked, most = ((folder / f"nf_conntrack_{name}").read_text() for name in ("count", "max"))
        return Connections(int(tracked), int(most))
    except (OSError, ValueError):
        return None


def is_full(connections: Connections | None) -> bool:
    """Whether the kernel's table is so full that it drops clients' packets soon, or already."""
    return connections is not None and connections.tracked >= FULL * connections.most


def troubles(process: ProcessStats, *, captures: bool, paused: str | None = None) -> dict[str, str]:
    """Return a sentence, without a full stop, for each of KINDS that is so now. `paused` is that of a pause."""
    found = {}
    if paused is not None:
        found["paused"] = paused
    if process.reload_refused is not None:
        found["config_refused"] = f"the file was refused, and what it was before holds: {process.reload_refused}"
    for sink, reason in process.export.lost.items():
        found["samples_lost"] = f"samples are lost ({sink}): {reason}"
    tracked = connections_tracked() if captures else None
    if tracked is not None and is_full(tracked):
        found["conntrack_full"] = (
            f"the kernel tracks {tracked.tracked} connections of {tracked.most} at most, and drops the packets of those"
            " above: raise net.netfilter.nf_conntrack_max"
        )
    loads = {"its event loop": (process.load.busy, process.load.lost)}
    loads |= {f"its TLS worker {number}": load for number, load in enumerate(process.worker_loads())}
    for who, (busy, lost) in loads.items():
        if is_saturated(busy, lost):
            found["saturated"] = (
                f"the sidecar is the bottleneck: {who} works {busy:.0%} of the time, and is late for {lost:.0%} of it"
            )
    return found


def digest(settings: object) -> str:
    """Return a few characters that are the same for the same settings."""
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:8]


def trouble_families(found: Mapping[str, str], digests: Mapping[str, str]) -> Iterator[Family]:
    """Yield the metrics of what was found, and of the settings that sidecars of a cluster should have in common."""
    yield trouble_family(found)
    told = [((digests["limits"], digests["quotas"]), 1)]
    yield gauge("weir_settings_info", "Digests of limits and named quotas.", told, "limits quotas")


def trouble_family(found: Mapping[str, str]) -> Family:
    """Return the metric of what was found."""
    so = {kind: int(kind in found) for kind in KINDS}
    return gauge("weir_trouble", "1 while so: `weir status` tells the rest.", so, "what")
