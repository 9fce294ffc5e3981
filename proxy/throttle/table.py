# SPDX-License-Identifier: Apache-2.0
"""The layers of the `[throttle]` table (what the file says, what HTTP changed), and the table that they make.

There may be thousands of topics. So what HTTP sends is read in slices, between which connections are served.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Any, cast

import msgspec

from weir.proxy.config.reader import ConfigError, in_words, read, read_table, shown, struct_fields
from weir.proxy.config.tables import Cluster, QuotaTable, ThrottleTable, TopicName, TopicThrottle
from weir.proxy.config.throttle import check_throttle
from weir.proxy.expiry import LEASE_KEY, Setting, handed_over, read_lease
from weir.proxy.layers import (
    EVERYTHING,
    HTTP,
    EffectiveThrottle,
    Entry,
    InForce,
    Layer,
    Lease,
    Path,
    Source,
    Value,
    ended_leases,
    hidden_by,
    merge,
    next_expiry,
)
from weir.proxy.slices import in_slices
from weir.quota.settings import UNTOLD, SideName
from weir.quota.throttled_replicas import ThrottledReplicas

SOURCES_KEY = "sources"
LAYERS_KEY = "layers"

TOPICS_PER_SLICE = 10
"""Topics read in about 1 ms, if each has two lists of ten replicas."""

UNTOLD_SECONDS = 30.0
"""How long nothing that is behind passes at most, while Kafka's own throttle is to be followed and was never read.

Nobody knows then what is to be throttled, and a move that runs would pass whole. But where it cannot be read at all, as
with a wrong password, replication has to go on.
"""

MOST_TOLD = 20
"""Parts of a change that the log tells one by one."""

_TOPICS = "topics"
_QUOTAS = "quotas"
_PARTS_PER_SLICE = 200  # shown in about 1 ms


_ALL = "*"  # shows the path of a removal of everything


class LayeredThrottle:
    """The throttle's layers. Each change takes place whole or not at all: ConfigError leaves everything as it was.

    `apply` is called at once with each new table, and must not fail on a table that was read without error. `clock`
    gives monotonic seconds.
    """

    def __init__(
        self,
        table: ThrottleTable,
        apply: Callable[[ThrottleTable], None],
        clock: Callable[[], float] = time.monotonic,
        cluster: Cluster | None = None,
    ) -> None:
        self._apply = apply
        self._clock = clock
        self._cluster = cluster
        self._see({"file": _layer_of_file(table), HTTP: Layer(HTTP)})

    def load(self, table: ThrottleTable) -> list[str]:
        """Put the file's table in force. Returns the paths of parts in which it undoes what HTTP had set or removed."""
        now = self._clock()
        before = merge(self._layers.values(), now).values()
        without_http = merge((layer for source, layer in self._layers.items() if source != HTTP), now).values()
        self._put({**self._layers, "file": _layer_of_file(table), HTTP: Layer(HTTP)})
        after = self.effective.values()
        by_http = (path for path in {**before, **without_http} if before.get(path) != without_http.get(path))
        return sorted(_shown(path) for path in by_http if before.get(path) != after.get(path))

    def follow(self, layer: Layer) -> None:
        """Put what Kafka's own configurations ask for in force, below what was set over HTTP."""
        self._put({**self._layers, layer.source: layer})

    async def replace(self, body: object) -> None:
        """Put `body` in force in place of the whole table (PUT)."""
        changes, lease = await self._read(body)
        settings = {path: entry for path, entry in changes.items() if entry.value is not None}
        self._put({**self._layers, HTTP: Layer(HTTP, {EVERYTHING: Entry(None, lease), **settings})})

    async def merge(self, body: object) -> None:
        """Merge `body` into the table; null removes (PATCH, RFC 7396)."""
        changes, _ = await self._read(body)
        below = [path for source, layer in self._layers.items() if source != HTTP for path in layer.entries]
        self._put({**self._layers, HTTP: self._layers[HTTP].patched(changes, below)})

    async def handed_over(self) -> list[Setting]:
        """Return what HTTP has set and removed, for a process that takes over."""
        entries = self._layers[HTTP].entries
        return [handed_over(*one, _plain) async for one in in_slices(entries.items(), _PARTS_PER_SLICE)]

    async def take_over(self, settings: Iterable[Setting]) -> None:
        """Put in force what HTTP had set in the process before; ConfigError where that cannot be read."""
        entries: dict[Path, Entry] = {}
        bodies: dict[Lease, dict[str, Any]] = {}
        for setting in settings:
            entries[setting.path] = Entry(None, lease := setting.lease)
            if setting.value is not None:
                _put_at(bodies.setdefault(lease, {}), setting.path, setting.value)
        for lease, body in bodies.items():
            read = await _read(body, lease, self._cluster)
            entries |= {path: entry for path, entry in read.items() if entry.value is not None}
        self._put({**self._layers, HTTP: Layer(HTTP, entries)})

    def forget_http(self) -> None:
        """Drop what HTTP set and removed, so that the file and Kafka's own throttle hold (DELETE ?source=http)."""
        self._put({**self._layers, HTTP: Layer(HTTP)})

    def clear(self) -> None:
        """Throttle nothing, whatever the file and Kafka's own throttle say until a restart or reload (DELETE)."""
        self._put({**self._layers, HTTP: Layer(HTTP, {EVERYTHING: Entry(None)})})

    def expire(self) -> list[Lease]:
        """Drop expired entries, and put those below them in force. Returns the leases that have ended."""
        ended = ended_leases(self._layers.values(), self._clock())
        self._put({source: layer.without(ended) for source, layer in self._layers.items()})
        return sorted(ended)

    def next_expiry(self) -> float:
        """Return when the next entry expires (clock seconds); inf where none does.

        One that has ended, and that `expire` has yet to drop, counts too: its end is to be told.
        """
        return next_expiry(self._layers.values(), -math.inf)

    def summary(self) -> dict[str, object]:
        """Return what the log tells of the table in force."""
        rates = {"leader_rate": self.table.leader_rate, "follower_rate": self.table.follower_rate}
        shown_rates = {name: "none" if rate is None else rate for name, rate in rates.items()}
        return {**shown_rates, "topics": len(self.table.topics)}

    def hidden_by_http(self) -> dict[Source, list[str]]:
        """Return what HTTP hides of each other layer, at most MOST_TOLD parts of each by name."""
        found = hidden_by(HTTP, self._layers.values(), self._clock()) if self._layers[HTTP].entries else {}
        return {source: [_shown(path) for path in nsmallest(MOST_TOLD, paths)] for source, paths in found.items()}

    async def as_plain(self) -> dict[str, Any]:
        """Return what GET shows: the table, `sources` by the path of each part, and `layers`, the lowest first."""
        now, effective = self._clock(), self.effective
        layers = [layer for layer in self._layers.values() if layer.entries]
        plain: dict[str, Any] = {_TOPICS: {}}
        sources: dict[str, Source] = {}
        async for path, part in in_slices(effective.parts.items(), _PARTS_PER_SLICE):
            _put_at(plain, path, _plain(part.value))
            sources[_shown(path)] = part.source
        shown_layers = []
        for layer in layers:
            parts = [
                _plain_entry(path, entry, now)
                async for path, entry in in_slices(layer.entries.items(), _PARTS_PER_SLICE)
            ]
            shown_layers.append({"source": layer.source, "parts": parts})
        return {**plain, SOURCES_KEY: sources, LAYERS_KEY: shown_layers}

    async def _read(self, body: object) -> tuple[dict[Path, Entry], Lease]:
        if not isinstance(body, Mapping):
            raise ConfigError("body", f"must be a JSON object, not {shown(body)}")
        lease = read_lease(body, self._clock())
        return await _read(body, lease, self._cluster), lease

    def _put(self, layers: dict[Source, Layer]) -> None:
        # no await from here on, so that nobody sees half of the change
        self._see(layers)
        self._apply(self.table)

    def _see(self, layers: dict[Source, Layer]) -> None:
        self._layers = layers
        self.effective = merge(layers.values(), self._clock())
        self.table = _table_of(self.effective)
        self.by_hand = sides_by_hand(self.effective)
        """The sides of which a part in force may have been forgotten."""


def untold_throttle(now: float) -> Layer:
    """Return what stands in for Kafka's own throttle before it was read: a rate of 0 for all that is behind."""
    lease = Lease(now + UNTOLD_SECONDS, "weir", "Kafka's own throttle was not read yet")
    sides: tuple[SideName, ...] = ("leader", "follower")
    quotas = [QuotaTable(name=f"{UNTOLD}-{side}", side=side, rate=0, topics=("*",)) for side in sides]
    return Layer("kafka", {(_QUOTAS, quota.name): Entry(quota, lease) for quota in quotas})


def sides_by_hand(effective: EffectiveThrottle) -> set[str]:
    """Return the sides of which a part in force may have been forgotten.

    Such a part is neither the file's, which stands there on purpose, nor ends by itself.
    """
    return {
        part.value.side if isinstance(part.value, QuotaTable) else path[-1].partition(".")[0]
        for path, part in effective.parts.items()
        if part.source != "file" and part.lease.expires_at == math.inf
    }


def changes_between(before: EffectiveThrottle, after: EffectiveThrottle) -> str:
    """Return what differs, for the log: `mode: none -> observe`, with at most MOST_TOLD parts. "none" is no part."""
    old, new = before.parts, after.parts
    paths = [path for path, part in new.items() if path not in old or old[path].value != part.value]
    paths += [path for path in old if path not in new]
    told = [
        f"{_shown(path)}: {_in_words(old.get(path))} -> {_in_words(new.get(path))}"
        for path in nsmallest(MOST_TOLD, paths)
    ]
    more = len(paths) - len(told)
    return "; ".join([*told, f"{more:,} more"] if more else told) or "nothing"


def _in_words(part: InForce | None) -> str:
    return "none" if part is None else in_words(_plain(part.value))


def _put_at(plain: dict[str, Any], path: Path, value: object) -> None:
    if path[0] == _QUOTAS:
        plain.setdefault(_QUOTAS, []).append(value)
        return
    for key in path[:-1]:
        plain = plain.setdefault(key, {})
    plain[path[-1]] = value


def _settings(table: ThrottleTable) -> Iterator[tuple[Path, Value]]:
    """Yield the table's settings with their paths. Empty lists and topics throttle nothing, and are left out."""
    for field in struct_fields(ThrottleTable):
        value = getattr(table, field.name)
        if field.name not in (_TOPICS, _QUOTAS) and value is not None:
            yield (field.encode_name,), value
    for quota in table.quotas:
        yield (_QUOTAS, quota.name), quota
    fields = [(field.name, field.encode_name) for field in struct_fields(TopicThrottle)]
    for topic, throttle in table.topics.items():
        for name, shown_name in fields:
            if replicas := getattr(throttle, name):
                yield (_TOPICS, topic, shown_name), replicas


def _table_of(effective: EffectiveThrottle) -> ThrottleTable:
    """Return the table made of these parts."""
    names = {field.encode_name: field.name for kind in (ThrottleTable, TopicThrottle) for field in struct_fields(kind)}
    rates: dict[str, Any] = {}
    topics: dict[str, dict[str, Any]] = {}
    quotas: list[Any] = []
    for path, part in effective.parts.items():
        if path[0] == _QUOTAS:
            quotas.append(part.value)
        else:
            of_topic = topics.setdefault(path[1], {}) if path[0] == _TOPICS else rates
            of_topic[names[path[-1]]] = part.value
    return ThrottleTable(
        **rates, quotas=tuple(quotas), topics={topic: TopicThrottle(**replicas) for topic, replicas in topics.items()}
    )


def _layer_of_file(table: ThrottleTable) -> Layer:
    return Layer("file", {path: Entry(value) for path, value in _settings(table)})


def _plain_entry(path: Path, entry: Entry, now: float) -> dict[str, Any]:
    plain: dict[str, Any] = {"part": _shown(path)}
    plain |= {"removed": True} if entry.value is None else {"value": _plain(entry.value)}
    if entry.lease.expires_at != math.inf:
        plain["expires_in_seconds"] = round(max(0.0, entry.lease.expires_at - now), 3)
    plain |= {name: text for name, text in (("owner", entry.lease.owner), ("reason", entry.lease.reason)) if text}
    return plain


def _plain(value: Value) -> object:
    if isinstance(value, QuotaTable):
        shown_quota = msgspec.to_builtins(value)
        return {
            key: list(one) if isinstance(one, tuple) else one for key, one in shown_quota.items() if one is not None
        }
    return str(value) if isinstance(value, ThrottledReplicas) else value


def _shown(path: Path) -> str:
    return ".".join(path) or _ALL


async def _read(body: Mapping[str, Any], lease: Lease, cluster: Cluster | None) -> dict[Path, Entry]:
    """Read what a merge patch sets and removes, some topics at a time. null, or a list without replicas, removes."""
    # sources and layers, so that what GET shows may be sent back as it is
    plain = {key: value for key, value in body.items() if key not in (SOURCES_KEY, LAYERS_KEY, LEASE_KEY, _TOPICS)}
    topics = body.get(_TOPICS, {})
    if topics is not None and not isinstance(topics, Mapping):
        raise ConfigError(_TOPICS, f"must be a table, not {shown(topics)}")
    table = read_table(ThrottleTable, {key: value for key, value in plain.items() if value is not None})
    check_throttle(table, cluster)
    settings = dict(_settings(table))
    # a list of quotas replaces the whole list (RFC 7396)
    changes: dict[Path, Entry] = {(key,): Entry(settings.pop((key,), None), lease) for key in plain}
    changes |= {path: Entry(value, lease) for path, value in settings.items()}
    if topics is None:
        changes[_TOPICS,], topics = Entry(None, lease), {}
    async for topic, lists in in_slices(topics.items(), TOPICS_PER_SLICE):
        if lists is None:
            changes[_TOPICS, topic] = Entry(None, lease)
        else:
            changes |= {(_TOPICS, topic, key): Entry(value, lease) for key, value in _read_lists(topic, lists)}
    return changes


def _read_lists(topic: str, lists: object) -> Iterator[tuple[str, ThrottledReplicas | None]]:
    """Yield a topic's lists by name; None: no replica."""
    told = {key: text for key, text in lists.items() if text is not None} if isinstance(lists, Mapping) else lists
    throttle = read(dict[TopicName, TopicThrottle], {topic: told}, _TOPICS)[topic]
    replicas = {field.encode_name: getattr(throttle, field.name) for field in struct_fields(TopicThrottle)}
    for key in cast(Mapping[str, object], lists):
        yield key, replicas.get(key) or None
