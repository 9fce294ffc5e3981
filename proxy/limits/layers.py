# SPDX-License-Identifier: Apache-2.0
"""The limits of clients in force, made of what the file says and what HTTP changed.

Each entry has a path of its client id and its `per`. The layers are merged as those of the throttle are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from weir.proxy.config.client_limits import ClientLimitTable, check_client_limits, read_client_limits
from weir.proxy.config.reader import ConfigError, in_words, shown
from weir.proxy.expiry import LEASE_KEY, Setting, handed_over, read_lease
from weir.proxy.layers import (
    EVERYTHING,
    FOREVER,
    HTTP,
    EffectiveThrottle,
    Entry,
    Layer,
    Lease,
    Path,
    ended_leases,
    merge,
    next_expiry,
)

_CLIENT, _SOURCES = "client", "sources"
_TASK = "task"

Tables = Sequence[ClientLimitTable]


class LimitLayers:
    """The entries of the file and of HTTP. Each change takes place whole or not at all: ConfigError changes nothing.

    `apply` is called with the entries in force after each change. `clock` gives monotonic seconds.
    """

    def __init__(self, apply: Callable[[Tables], None], clock: Callable[[], float]) -> None:
        self._apply = apply
        self._clock = clock
        self._file, self._http = Layer("file"), Layer(HTTP)
        self._effective = EffectiveThrottle()

    @property
    def tables(self) -> tuple[ClientLimitTable, ...]:
        """The entries in force."""
        return _tables_of(self._effective)

    def load(self, tables: Tables) -> None:
        """Put the file's entries in force. What HTTP set is gone."""
        self._put(Layer("file", _entries(tables, FOREVER)), Layer(HTTP))

    def replace(self, body: object) -> None:
        """Put the entries of `body` in force in place of all others (PUT)."""
        changes, lease = self._read(body)
        entries = _entries(read_client_limits(changes, _CLIENT), lease)
        self._change(Layer(HTTP, {EVERYTHING: Entry(None, lease), **entries}))

    def patch(self, body: object) -> None:
        """Merge entries into those with the same client id and `per`; null removes a key (PATCH)."""
        changes, lease = self._read(body)
        patched = _patched(self.tables, changes)
        entries = _entries(read_client_limits(patched, _CLIENT), lease)
        self._change(self._http.patched(entries, ()))

    def clear(self) -> None:
        """Limit no client, whatever the file says until a restart or reload (DELETE)."""
        self._put(self._file, Layer(HTTP, {EVERYTHING: Entry(None)}))

    def handed_over(self) -> list[Setting]:
        """Return what HTTP has set and removed, for a process that takes over."""
        return [handed_over(*one, ClientLimitTable.as_plain) for one in self._http.entries.items()]

    def take_over(self, settings: Iterable[Setting]) -> None:
        """Put in force what HTTP had set in the process before; ConfigError where that cannot be read."""
        entries: dict[Path, Entry] = {}
        for setting in settings:
            lease = setting.lease
            removed = {setting.path: Entry(None, lease)}
            entries |= (
                removed if setting.value is None else _entries(read_client_limits([setting.value], _CLIENT), lease)
            )
        self._put(self._file, Layer(HTTP, entries))

    def forget_http(self, client_id: str | None = None) -> None:
        """Drop what HTTP set for every client, or for one id, so that the file's entries hold (DELETE ?source=http)."""
        entries = {} if client_id is None else self._http.entries
        kept = {path: entry for path, entry in entries.items() if path[:1] != (client_id,)}
        self._put(self._file, Layer(HTTP, kept))

    def expire(self) -> list[Lease]:
        """Drop entries whose lease has ended, and put the file's in force. Returns the leases that have ended."""
        ended = ended_leases([self._http], self._clock())
        self._put(self._file, self._http.without(ended))
        return sorted(ended)

    def next_expiry(self) -> float:
        """Return when the next lease ends (clock seconds); inf where none does."""
        return next_expiry([self._http], -math.inf)

    def as_plain(self) -> dict[str, Any]:
        """Return what GET shows: the entries, and `sources` where some of them are not the file's."""
        plain: dict[str, Any] = {_CLIENT: [table.as_plain() for table in self.tables]}
        if self._http.entries:
            plain[_SOURCES] = [self._source_of(path) for path in self._effective.parts]
        return plain

    def _source_of(self, path: Path) -> dict[str, Any]:
        part = self._effective.parts[path]
        plain: dict[str, Any] = {"client_id": path[0], "per": path[1], "source": part.source}
        if part.lease.expires_at != math.inf:
            plain["expires_in_seconds"] = round(max(0.0, part.lease.expires_at - self._clock()), 3)
            plain |= {"owner": part.lease.owner, "reason": part.lease.reason}
        return plain

    def _read(self, body: object) -> tuple[object, Lease]:
        """Return the entries of a body, yet to be read, and how long they hold."""
        if not isinstance(body, Mapping) or not {_CLIENT} <= set(body) <= {_CLIENT, LEASE_KEY, _SOURCES}:
            raise ConfigError("body", f'must be {{"client": [...]}}, also with "lease", not {shown(body)}')
        return body[_CLIENT], read_lease(body, self._clock())

    def _change(self, http: Layer) -> None:
        """Put what HTTP asks for in force. What ends or is taken back is not refused, so nothing else is checked."""
        check_client_limits(_tables_of(merge([self._file, http], self._clock())), _CLIENT)
        self._put(self._file, http)

    def _put(self, file: Layer, http: Layer) -> None:
        self._file, self._http, self._effective = file, http, merge([file, http], self._clock())
        self._apply(self.tables)


def limits_in_words(before: Tables, after: Tables) -> str:
    """Return what differs, for the log, as in `mine (task): none -> byte.rate.limit=5000`."""
    old, new = _by_path(before), _by_path(after)
    told = [
        f"{path[0]} ({path[1]}): {_in_words(old.get(path))} -> {_in_words(new.get(path))}"
        for path in {**old, **new}
        if old.get(path) != new.get(path)
    ]
    return "; ".join(told) or "nothing"


def _in_words(table: ClientLimitTable | None) -> str:
    if table is None:
        return "none"
    plain = {name: value for name, value in table.as_plain().items() if name not in ("client_id", "per")}
    return " ".join(f"{name}={in_words(value)}" for name, value in plain.items()) or "no limit"


def _tables_of(effective: EffectiveThrottle) -> tuple[ClientLimitTable, ...]:
    return tuple(cast(ClientLimitTable, part.value) for part in effective.parts.values())


def _entries(tables: Tables, lease: Lease) -> dict[Path, Entry]:
    return {path: Entry(table, lease) for path, table in _by_path(tables).items()}


def _by_path(tables: Tables) -> dict[Path, ClientLimitTable]:
    return {(table.client_id, table.per): table for table in tables}


def _patched(tables: Tables, changes: object) -> list[dict[str, Any]]:
    """Return the entries that `changes` names by their client id and `per`, merged with what is in force."""
    old = {path: table.as_plain() for path, table in _by_path(tables).items()}
    if not isinstance(changes, list):
        raise ConfigError(_CLIENT, f"must be a list, not {shown(changes)}")
    entries: dict[Path, dict[str, Any]] = {}
    for index, change in enumerate(changes):
        if not isinstance(change, Mapping) or not isinstance(change.get("client_id"), str):
            raise ConfigError(f"{_CLIENT}[{index}]", "must be a table with a client_id: it says which entry changes")
        key = str(change["client_id"]), str(change.get("per", _TASK))
        merged = {**old.get(key, {}), **entries.get(key, {}), **change}
        entries[key] = {name: value for name, value in merged.items() if value is not None}
    return list(entries.values())
