"""The `[throttle]` table in force: what it holds, where each part came from, and changes by file and by HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from proxy.config import ThrottleTable, TopicThrottle
from proxy.config_reader import ConfigError, join, read_table, shown, struct_fields

Source = Literal["file", "http"]

SOURCES_KEY = "sources"


class ThrottleInForce:
    """The table in force. Every change is whole or not at all: ConfigError leaves everything as it was.

    `apply` is called with each new table, at once; it must not fail on a table that was read without error.
    """

    def __init__(self, table: ThrottleTable, apply: Callable[[ThrottleTable], None]) -> None:
        self._apply = apply
        self.table = _normal(table)
        self._of_file = dict(_parts(plain_table(self.table)))
        self.sources: dict[str, Source] = dict.fromkeys(self._of_file, "file")

    def load(self, table: ThrottleTable) -> list[str]:
        """Put the file's table in force; return the paths of the parts that undo what HTTP had set or removed."""
        before, old_file = dict(_parts(plain_table(self.table))), self._of_file
        self._put(_normal(table), lambda part: "file")
        self._of_file = after = dict(_parts(plain_table(self.table)))
        by_http = (part for part in {**before, **old_file} if before.get(part) != old_file.get(part))
        return sorted(part for part in by_http if before.get(part) != after.get(part))

    def replace(self, body: object) -> None:
        """Put `body` in force in place of the whole table (PUT)."""
        self._put(_read({}, body), lambda part: "http")

    def merge(self, body: object) -> None:
        """Merge `body` into the table; null removes (PATCH, RFC 7396)."""
        # Only topics that it names are read again: there may be thousands, and connections wait meanwhile.
        changed = body.get("topics", {}) if isinstance(body, Mapping) else {}
        named_topics = changed if isinstance(changed, Mapping) else self.table.topics
        kept = {name: topic for name, topic in self.table.topics.items() if name not in named_topics}
        rest = {name: topic for name, topic in self.table.topics.items() if name in named_topics}
        read = _read(plain_table(msgspec.structs.replace(self.table, topics=rest)), body)
        merged = msgspec.structs.replace(read, topics={**kept, **read.topics})
        named = dict(_parts(body)) if isinstance(body, Mapping) else {}
        before = self.sources
        self._put(merged, lambda part: "http" if part in named else before.get(part, "http"))

    def clear(self) -> None:
        """Throttle nothing (DELETE)."""
        self._put(ThrottleTable(), lambda part: "http")

    def as_plain(self) -> dict[str, Any]:
        """Return what GET shows: the table, and `sources` by the path of each part."""
        return {**plain_table(self.table), SOURCES_KEY: dict(self.sources)}

    def _put(self, table: ThrottleTable, source: Callable[[str], Source]) -> None:
        self.table = table
        self.sources = {part: source(part) for part, _ in _parts(plain_table(table))}
        self._apply(table)


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


def _read(current: Mapping[str, Any], body: object) -> ThrottleTable:
    if not isinstance(body, Mapping):
        raise ConfigError("body", f"must be a JSON object, not {shown(body)}")
    # What GET shows may be sent back as it is.
    changes = {key: value for key, value in body.items() if key != SOURCES_KEY}
    return _normal(read_table(ThrottleTable, _merged(current, changes)))


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
