"""The `[throttle]` table in force: what it holds, where each part came from, and changes by file and by HTTP.

There may be thousands of topics: what HTTP sends is read in slices, and connections are served in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec

from proxy.config import ThrottleTable, TopicThrottle
from proxy.config_reader import ConfigError, join, read_table, shown, struct_fields

Source = Literal["file", "http"]

SOURCES_KEY = "sources"


TOPICS_PER_SLICE = 10
"""Read in about 1 ms where each has two lists of ten replicas."""


class _Whole(NamedTuple):
    """A table, and the same as JSON holds it."""

    table: ThrottleTable
    plain: dict[str, Any]


class ThrottleInForce:
    """The table in force. Every change is whole or not at all: ConfigError leaves everything as it was.

    `apply` is called with each new table, at once; it must not fail on a table that was read without error.
    """

    def __init__(self, table: ThrottleTable, apply: Callable[[ThrottleTable], None]) -> None:
        self._apply = apply
        self.table, self._plain = _whole(table)
        self._of_file = dict(_parts(self._plain))
        self.sources: dict[str, Source] = dict.fromkeys(self._of_file, "file")

    def load(self, table: ThrottleTable) -> list[str]:
        """Put the file's table in force; return the paths of the parts that undo what HTTP had set or removed."""
        before, old_file = dict(_parts(self._plain)), self._of_file
        self._put(_whole(table), lambda part: "file")
        self._of_file = after = dict(_parts(self._plain))
        by_http = (part for part in {**before, **old_file} if before.get(part) != old_file.get(part))
        return sorted(part for part in by_http if before.get(part) != after.get(part))

    async def replace(self, body: object) -> None:
        """Put `body` in force in place of the whole table (PUT)."""
        self._put(await _read({}, body), lambda part: "http")

    async def merge(self, body: object) -> None:
        """Merge `body` into the table; null removes (PATCH, RFC 7396)."""
        merged_into = None
        while merged_into is not self.table:  # another change came while this one was read
            merged_into = self.table
            merged = await self._merged_with(body)
        named = dict(_parts(body)) if isinstance(body, Mapping) else {}
        before = self.sources
        self._put(merged, lambda part: "http" if part in named else before.get(part, "http"))

    def clear(self) -> None:
        """Throttle nothing (DELETE)."""
        self._put(_whole(ThrottleTable()), lambda part: "http")

    def as_plain(self) -> dict[str, Any]:
        """Return what GET shows: the table, and `sources` by the path of each part."""
        return {**self._plain, SOURCES_KEY: dict(self.sources)}

    async def _merged_with(self, body: object) -> _Whole:
        """Read again only the topics that `body` names."""
        table, plain = self.table, self._plain
        changed = body.get("topics", {}) if isinstance(body, Mapping) else {}
        named = changed if isinstance(changed, Mapping) else plain["topics"]
        read = await _read(plain, body)
        topics = {name: topic for name, topic in table.topics.items() if name not in named}
        plain_topics = {name: topic for name, topic in plain["topics"].items() if name not in named}
        return _Whole(
            msgspec.structs.replace(read.table, topics={**topics, **read.table.topics}),
            {**read.plain, "topics": {**plain_topics, **read.plain["topics"]}},
        )

    def _put(self, whole: _Whole, source: Callable[[str], Source]) -> None:
        # No await here: a change is whole before anyone sees it.
        self.table, self._plain = whole
        self.sources = {part: source(part) for part, _ in _parts(self._plain)}
        self._apply(self.table)


def plain_table(table: ThrottleTable) -> dict[str, Any]:
    """Return the table as JSON holds it: Kafka's names, absent parts left out, `topics` always there."""
    plain: dict[str, Any] = {}
    for field in struct_fields(ThrottleTable):
        value = getattr(table, field.name)
        if field.name != "topics" and value is not None:
            plain[field.encode_name] = value
    plain["topics"] = {name: _plain_topic(topic) for name, topic in table.topics.items()}
    return plain


def _plain_topic(topic: TopicThrottle) -> dict[str, str]:
    replicas = {field.encode_name: getattr(topic, field.name) for field in struct_fields(TopicThrottle)}
    return {name: str(value) for name, value in replicas.items() if value}


def _normal(table: ThrottleTable) -> ThrottleTable:
    """Leave out topics of which nothing is throttled."""
    topics = {name: topic for name, topic in table.topics.items() if topic.leader_replicas or topic.follower_replicas}
    return msgspec.structs.replace(table, topics=topics)


def _whole(table: ThrottleTable) -> _Whole:
    table = _normal(table)
    return _Whole(table, plain_table(table))


async def _read(current: Mapping[str, Any], body: object) -> _Whole:
    """Read `current` after the merge patch `body`, of its topics those that `body` names; a slice of them at a time."""
    if not isinstance(body, Mapping):
        raise ConfigError("body", f"must be a JSON object, not {shown(body)}")
    # What GET shows may be sent back as it is.
    changes = {key: value for key, value in body.items() if key != SOURCES_KEY}
    topics = changes.pop("topics", None)
    if topics is not None and not isinstance(topics, Mapping):
        raise ConfigError("topics", f"must be a table, not {shown(topics)}")
    rest = _whole(read_table(ThrottleTable, _merged({**current, "topics": {}}, changes)))
    read, plain = rest.table.topics, rest.plain["topics"]
    known = current.get("topics", {})
    left = iter((topics or {}).items())
    while some := dict(islice(left, TOPICS_PER_SLICE)):
        before = {name: known[name] for name in some if name in known}
        of_some = _whole(read_table(ThrottleTable, {"topics": _merged(before, some)}))
        read.update(of_some.table.topics)
        plain.update(of_some.plain["topics"])
        await asyncio.sleep(0)
    return rest


def _merged(current: object, change: object) -> object:
    """Return `current` after an RFC 7396 merge patch: tables merge, null removes, all else replaces."""
    if not isinstance(change, Mapping):
        return change
    merged = dict(current) if isinstance(current, Mapping) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _parts(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in the table that is not itself a table, with its path in front."""
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _parts(value, join(path, key))
        else:
            yield join(path, key), value
