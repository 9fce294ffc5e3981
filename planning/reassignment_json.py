# SPDX-License-Identifier: Apache-2.0
"""The two JSON formats of kafka-reassign-partitions: topics to move, and a reassignment.

Written text is byte for byte what Kafka's tool writes (ReassignPartitionsCommand.java), so that each tool reads the
other's files.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.planning.assignment import Brokers, Partition, Replica

ANY_LOG_DIR: Final = "any"
_VERSION: Final = 1
_INT32_MAX: Final = 2**31 - 1


class InvalidPlan(ValueError):
    """The text is no plan. `where` is a path such as partitions[3].replicas, or a line and column; `reason` says why.

    `where` is empty for what is true of the whole.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" if self.where else self.reason


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """What a reassignment file says: the brokers of each partition, and log directories where it names some."""

    brokers: Mapping[Partition, Brokers]
    log_dirs: Mapping[Replica, str]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of its partitions, by name."""
        return tuple(sorted({partition.topic for partition in self.brokers}))

    @property
    def id(self) -> str:
        """Eight letters and digits that tell it from other plans, whatever file it is in."""
        said = repr((sorted(self.brokers.items()), sorted(self.log_dirs.items())))
        return hashlib.sha256(said.encode()).hexdigest()[:8]


def parse_topics(text: str) -> tuple[str, ...]:
    """Read a file of topics to move. InvalidPlan says what is wrong with it."""
    topics = []
    for index, entry in enumerate(_entries(text, "topics")):
        where = f"topics[{index}]"
        topics.append(_text(_field(entry, "topic", where), f"{where}.topic"))
    if not topics:
        raise InvalidPlan("topics", "no topic is named")
    if twice := _duplicates(topics):
        raise InvalidPlan("topics", f"a topic is named twice: {', '.join(twice)}")
    return tuple(topics)


def parse_reassignment(text: str) -> ReassignmentPlan:
    """Read a reassignment file. InvalidPlan says what is wrong with it."""
    brokers: dict[Partition, Brokers] = {}
    log_dirs: dict[Replica, str] = {}
    for index, entry in enumerate(_entries(text, "partitions")):
        where = f"partitions[{index}]"
        topic = _text(_field(entry, "topic", where), f"{where}.topic")
        partition = Partition(topic, _id(_field(entry, "partition", where), f"{where}.partition"))
        if partition in brokers:
            raise InvalidPlan(where, f"{partition} stands in the plan twice")
        replicas = _list(_field(entry, "replicas", where), f"{where}.replicas")
        brokers[partition] = tuple(_id(broker, f"{where}.replicas") for broker in replicas)
        _check_brokers(partition, brokers[partition], f"{where}.replicas")
        log_dirs |= _log_dirs(partition, brokers[partition], entry, where)
    if not brokers:
        raise InvalidPlan("partitions", "the plan moves no partition")
    return ReassignmentPlan(brokers, log_dirs)


def format_reassignment(brokers: Mapping[Partition, Brokers], log_dirs: Mapping[Replica, str] | None = None) -> str:
    """Write a reassignment file's one line, sorted by partition."""
    named = log_dirs or {}
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(replicas),
            "log_dirs": [named.get(Replica(*partition, broker), ANY_LOG_DIR) for broker in replicas],
        }
        for partition, replicas in sorted(brokers.items())
    ]
    return json.dumps({"version": _VERSION, "partitions": partitions}, separators=(",", ":"), ensure_ascii=False)


def parse_brokers(text: str) -> tuple[int, ...]:
    """Read `--broker-list`: ids as in 1,2,3. InvalidPlan says what is wrong with it."""
    ids = []
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit()) or int(digits) > _INT32_MAX:
            raise InvalidPlan("", f"{digits!r} is no broker id: give ids as in 1,2,3")
        ids.append(int(digits))
    if twice := _duplicates(ids):
        raise InvalidPlan("", f"a broker is named twice: {', '.join(twice)}")
    return tuple(ids)


def _entries(text: str, name: str) -> Sequence[Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        # Python's messages begin with a capital letter and name what was expected.
        raise InvalidPlan(
            f"line {error.lineno}, column {error.colno}", f"this is no JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        ) from error
    except RecursionError:
        raise InvalidPlan("", "this is no plan: its JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise InvalidPlan("", f"this is no plan: an object with {name} is expected")
    version = value.get("version", _VERSION)
    if type(version) is not int or version != _VERSION:
        raise InvalidPlan("version", f"{version!r} is not known: {_VERSION} is the only version")
    return _list(value.get(name, []), name)


def _log_dirs(partition: Partition, brokers: Brokers, entry: Any, where: str) -> dict[Replica, str]:
    if "log_dirs" not in entry:
        return {}
    named = [_text(path, f"{where}.log_dirs") for path in _list(entry["log_dirs"], f"{where}.log_dirs")]
    if len(named) != len(brokers):
        raise InvalidPlan(
            f"{where}.log_dirs", f"{partition} has {len(brokers)} replicas, but {len(named)} log directories"
        )
    return {
        Replica(*partition, broker): path for broker, path in zip(brokers, named, strict=True) if path != ANY_LOG_DIR
    }


def _check_brokers(partition: Partition, brokers: Brokers, where: str) -> None:
    if not brokers:
        raise InvalidPlan(where, f"{partition} would have no replica")
    if twice := _duplicates(brokers):
        raise InvalidPlan(where, f"{partition} has two replicas on one broker: {', '.join(twice)}")


def _field(entry: Any, name: str, where: str) -> Any:
    if not isinstance(entry, dict):
        raise InvalidPlan(where, "an object is expected")
    if name not in entry:
        raise InvalidPlan(where, f"{name} is missing")
    return entry[name]


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidPlan(where, "a list is expected")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidPlan(where, "a text is expected")
    return value


def _id(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _INT32_MAX:
        raise InvalidPlan(where, f"{value!r} is no id: a number from 0 to {_INT32_MAX} is expected")
    return value


def _duplicates(values: Iterable[object]) -> list[str]:
    return [str(value) for value, count in Counter(values).items() if count > 1]
