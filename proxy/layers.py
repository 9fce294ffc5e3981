# SPDX-License-Identifier: Apache-2.0
"""The throttle in force, as a pure merge of layers: the file, Kafka's own throttle, and what was set over HTTP.

Entries are settings by path, as `("topics", "orders", "leader.replication.throttled.replicas")`. The highest layer with
an entry wins; one that expires has the one below it in force again.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Source = Literal["file", "kafka", "http"]

HTTP: Final[Source] = "http"

SOURCES: Final[tuple[Source, ...]] = ("file", "kafka", HTTP)  # where layers come from, the lowest first

Path = tuple[str, ...]
Value = Hashable  # A setting: a rate in bytes/s, a word, a list of replicas, or a whole quota

EVERYTHING: Final[Path] = ()  # the path of an entry that removes everything in lower layers


class Lease(NamedTuple):
    """Until when an entry holds (clock seconds), who set it, and why."""

    expires_at: float = math.inf
    owner: str = ""
    reason: str = ""


FOREVER: Final = Lease()


class Entry(NamedTuple):
    """One setting. None removes what lower layers have at its path and at every path that begins with it."""

    value: Value | None
    lease: Lease = FOREVER


class InForce(NamedTuple):
    """One setting in force, and the layer that it comes from."""

    value: Value
    source: Source
    lease: Lease = FOREVER


@dataclass(frozen=True, slots=True)
class Layer:
    """The entries of one source."""

    source: Source
    entries: Mapping[Path, Entry] = field(default_factory=dict)

    def without(self, ended: Container[Lease]) -> Layer:
        """Return this layer without the entries of leases that have ended."""
        return Layer(self.source, {path: entry for path, entry in self.entries.items() if entry.lease not in ended})

    def patched(self, changes: Mapping[Path, Entry], below: Iterable[Path]) -> Layer:
        """Return this layer after `changes`.

        A removal takes away its own entries, and is kept only where it hides one of the paths in `below`, those of
        lower layers: else removals of made-up topics would fill the layer.
        """
        removed = {path for path, entry in changes.items() if entry.value is None}
        entries = {path: entry for path, entry in self.entries.items() if not _is_within(path, removed)}
        if removed:
            hidden = {prefix for path in below for prefix in _prefixes(path)}
            entries |= {path: changes[path] for path in removed & hidden}
        entries |= {path: entry for path, entry in changes.items() if entry.value is not None}
        return Layer(self.source, entries)


@dataclass(frozen=True, slots=True)
class EffectiveThrottle:
    """What all layers together put in force, by path."""

    parts: Mapping[Path, InForce] = field(default_factory=dict)

    def values(self) -> dict[Path, Value]:
        """Return the settings alone."""
        return {path: part.value for path, part in self.parts.items()}


def merge(layers: Iterable[Layer], now: float) -> EffectiveThrottle:
    """Return what is in force at `now` (clock seconds). Each source has at most one layer, in any order."""
    parts: dict[Path, InForce] = {}
    for layer in sorted(layers, key=lambda layer: SOURCES.index(layer.source)):
        live = [(path, entry) for path, entry in layer.entries.items() if now < entry.lease.expires_at]
        removed = {path for path, entry in live if entry.value is None}
        if EVERYTHING in removed:
            parts = {}
        elif removed:
            parts = {path: part for path, part in parts.items() if not _is_within(path, removed)}
        for path, entry in live:
            if entry.value is not None:
                parts[path] = InForce(entry.value, layer.source, entry.lease)
    return EffectiveThrottle(parts)


def hidden_by(source: Source, layers: Iterable[Layer], now: float) -> dict[Source, list[Path]]:
    """Return the settings of each other layer that would be in force at `now` but for that of `source`."""
    layers = list(layers)
    effective = merge(layers, now).parts
    without = merge((layer for layer in layers if layer.source != source), now).parts
    found: dict[Source, list[Path]] = {}
    for path, part in without.items():
        if path not in effective or effective[path].value != part.value:
            found.setdefault(part.source, []).append(path)
    return found


def ended_leases(layers: Iterable[Layer], now: float) -> set[Lease]:
    """Return the leases in these layers that have ended at `now` (clock seconds)."""
    return {entry.lease for layer in layers for entry in layer.entries.values() if entry.lease.expires_at <= now}


def next_expiry(layers: Iterable[Layer], now: float) -> float:
    """Return when the next entry expires after `now` (clock seconds); inf where none does."""
    ends = (entry.lease.expires_at for layer in layers for entry in layer.entries.values())
    return min((end for end in ends if end > now), default=math.inf)


def _prefixes(path: Path) -> Iterator[Path]:
    return (path[:length] for length in range(len(path) + 1))


def _is_within(path: Path, removed: set[Path]) -> bool:
    return bool(removed) and any(prefix in removed for prefix in _prefixes(path))
