# SPDX-License-Identifier: Apache-2.0
"""`[[limits.client]]` in the file: what it makes, and one sentence for what is wrong."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from tests.limits.limiters import Scripted
from weir.limits.built_in import BUILT_IN, RecordRateLimiter
from weir.limits.rate_limiter import Option
from weir.limits.rules import INTERNAL_TOPICS
from weir.proxy.config import plugins
from weir.proxy.config.client_limits import MOST_RULES, ClientLimitTable, rules_of
from weir.proxy.config.limiters import KNOWN
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError

BASE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"
"""


class Nightly(Scripted):
    """A limiter of somebody else's."""

    def config(self) -> list[Option]:
        """Its options."""
        return [
            Option("nightly.rate", float, "records/s at night", default=10.0, least=0.5),
            Option("nightly.zone", str, "where the night is", default="UTC"),
            Option("nightly.hours", int, "how long it is"),
            Option("nightly.strict", bool, "whether at dusk too", default=False),
        ]


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("out of\norder")


class Ends:
    """Ends the process instead of being made."""

    def __init__(self) -> None:
        sys.exit(2)


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module, known = types.ModuleType("their_limits"), dict(KNOWN)
    vars(module).update(Nightly=Nightly, Broken=Broken, Ends=Ends, number=5)
    monkeypatch.setitem(sys.modules, "their_limits", module)
    yield
    KNOWN.clear()
    KNOWN.update(known)


def read(text: str) -> tuple[ClientLimitTable, ...]:
    return parse_config(BASE + text).limits.client


def test_built_in_limiters_are_on_and_limit_nothing_by_default() -> None:
    (rule,) = rules_of(read('[[limits.client]]\nclient_id = "connector-*"'))
    assert [(one.name, one.make, one.is_built_in) for one in rule.limiters] == [
        (name, make, True) for name, make in BUILT_IN.items()
    ]
    assert [list(one.settings.values()) for one in rule.limiters] == [[None]] * 3
    assert (rule.pattern, rule.per, rule.exempt_topics, rule.priority) == ("connector-*", "task", INTERNAL_TOPICS, ())


def test_what_is_set_is_in_the_rules() -> None:
    tables = read("""
[limits]
drain_seconds = 5
[[limits.client]]
client_id = "connector-consumer-s3-*"
"record.rate.limit" = 1000
"record.batch.rate.limit" = 50
"byte.rate.limit" = 1e6
per = "connector"
priority = ["connector-consumer-s3-0"]
"exempt.topics" = ["internal-*"]
[[limits.client]]
client_id = "mine"
"rate.limiters" = ["RecordRateLimiter", "their_limits.Nightly"]
"nightly.hours" = 8
""")
    first, second = rules_of(tables)
    assert [list(one.settings.values()) for one in first.limiters] == [[1000], [50], [1e6]]
    assert (first.per, first.priority, first.exempt_topics) == (
        "connector",
        ("connector-consumer-s3-0",),
        ("internal-*",),
    )
    assert [one.make for one in second.limiters] == [RecordRateLimiter, Nightly]
    assert second.limiters[1].settings == {
        "nightly.rate": 10.0,
        "nightly.zone": "UTC",
        "nightly.hours": 8,
        "nightly.strict": False,
    }
    assert not second.limiters[1].is_built_in
    assert [ClientLimitTable.read(table.as_plain(), "client") for table in tables] == list(tables)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "limits.client[0].client_id: is missing."),
        ('client_id = ""', "must be a client id of 1 to 255 characters; it may have *, ? and [...], not ''."),
        ("client_id = 5", "limits.client[0].client_id: must be a client id"),
        (
            'client_id = "a"\n"record.rate.limit" = 0',
            "record.rate.limit: must be a number from 0.001 to 1e+15: the most records a second; not 0.",
        ),
        ('client_id = "a"\n"record.rate.limit" = true', "not true."),
        ('client_id = "a"\n"record.rate.limit" = nan', "not nan."),
        ('client_id = "a"\n"byte.rate.limit" = "5"', "the most bytes of records a second, as on the wire; not '5'."),
        ('client_id = "a"\nrecord.rate.limit = 5', 'a key with dots must be quoted: "record.rate.limit"'),
        (
            'client_id = "a"\n"record.rate" = 5',
            'limits.client[0].record.rate: is not a known key; did you mean "record.rate.limit"?',
        ),
        ('client_id = "a"\n"nightly.rate" = 5', "is not a known key"),
        ('client_id = "a"\nper = "worker"', 'limits.client[0].per: must be "task" or "connector", not \'worker\'.'),
        (
            'client_id = "a"\n"rate.limiters" = ["Slow"]',
            '"Slow" is not known here; known are ByteRateLimiter, RecordBatchRateLimiter, RecordRateLimiter, and',
        ),
        (
            'client_id = "a"\n"rate.limiters" = ["no.such.Thing"]',
            "\"no.such.Thing\" cannot be loaded: ModuleNotFoundError: No module named 'no'.",
        ),
        (
            'client_id = "a"\n"rate.limiters" = ["their_limits.Other"]',
            '"their_limits.Other" cannot be loaded: AttributeError',
        ),
        (
            'client_id = "a"\n"rate.limiters" = ["their_limits.Broken"]',
            '"their_limits.Broken" cannot be used: RuntimeError: out of order.',
        ),
        (
            'client_id = "a"\n"rate.limiters" = ["their_limits.Ends"]',
            '"their_limits.Ends" cannot be used: SystemExit: 2.',
        ),
        (
            'client_id = "a"\n"rate.limiters" = ["their_limits.number"]',
            '"their_limits.number" cannot be used: it is no class.',
        ),
        ('client_id = "a"\n"rate.limiters" = ["RecordRateLimiter", "RecordRateLimiter"]', "names a limiter twice"),
        (
            'client_id = "a"\n"rate.limiters" = ["their_limits.Nightly"]\n"nightly.hours" = 1.5',
            "must be an integer: how long it is; not 1.5.",
        ),
        (
            'client_id = "a"\n"rate.limiters" = ["their_limits.Nightly"]\n"nightly.rate" = 0.1',
            "must be a number from 0.5 to 1e+15: records/s at night; not 0.1.",
        ),
        (
            'client_id = "a"\n[[limits.client]]\nclient_id = "a"',
            'limits.client[1].client_id: "a" has another entry per task too: make one',
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f"[[limits.client]]\n{text}")
    assert sentence.removesuffix(".") in refused.value.sentence()
    assert "\n" not in refused.value.sentence()


def test_there_are_not_too_many_entries() -> None:
    text = "".join(f'[[limits.client]]\nclient_id = "{number}"\n' for number in range(MOST_RULES + 1))
    with pytest.raises(ConfigError, match=r"limits.client: has 101 entries: at most 100 are allowed"):
        read(text)


def test_a_limiter_that_a_package_announces_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "nightly"

        def load(self) -> type[Nightly]:
            return Nightly

    def announced(group: str) -> list[Point]:
        assert group == "weir.rate_limiters"
        return [Point()]

    monkeypatch.setattr(plugins, "entry_points", announced)
    (rule,) = rules_of(read('[[limits.client]]\nclient_id = "a"\n"rate.limiters" = ["nightly"]'))
    assert rule.limiters[0].make is Nightly
