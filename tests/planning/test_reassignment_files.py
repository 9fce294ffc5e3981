# SPDX-License-Identifier: Apache-2.0
"""Reassignment files as people and tools write them, beside what Kafka's own tool makes of each."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from pathlib import Path

import pytest

from weir.lab.jars import ensure
from weir.lab.java import find_java
from weir.planning.reassignment_json import InvalidPlan, parse_reassignment

ENTRY = '{"topic": "a", "partition": 0, "replicas": [1, 2]}'


def plan(*entries: str, version: str = '"version": 1, ') -> str:
    return f'{{{version}"partitions": [{", ".join(entries)}]}}'


def entry(**changed: object) -> str:
    return json.dumps({"topic": "a", "partition": 0, "replicas": [1, 2], **changed})


def without(field: str) -> str:
    return json.dumps({name: value for name, value in json.loads(ENTRY).items() if name != field})


SHAPES = [
    plan(ENTRY),
    plan(ENTRY, version=""),
    plan(ENTRY, entry(partition=1), entry(topic="b")),
    plan(ENTRY) + "\n\n",
    "\ufeff" + plan(ENTRY),
    plan(ENTRY).replace(" ", ""),
    plan(ENTRY).replace(", ", ",\n\t"),
    plan(ENTRY).replace('"', "'"),
    plan(ENTRY) + "x",
    plan(ENTRY) + plan(entry(partition=1)),
    plan(ENTRY)[:-1],
    plan(ENTRY + ", "),
    plan(ENTRY).replace("[1, 2]", "[1, 2,]"),
    plan(ENTRY).replace("[1, 2]", "[01, 2]"),
    plan(ENTRY).replace("[1, 2]", "[1 2]"),
    plan(ENTRY).replace("[1, 2]", "[+1]"),
    plan(ENTRY).replace("[1, 2]", "[NaN]"),
    "// moved by hand\n" + plan(ENTRY),
    "/* by hand */" + plan(ENTRY),
    "# by hand\n" + plan(ENTRY),
    plan(),
    "{}",
    "[]",
    "null",
    "1",
    "",
    "   ",
    '{"version": 1}',
    '{"version": 1, "partitions": null}',
    '{"version": 1, "partitions": {}}',
    '{"version": 1, "partitions": [null]}',
    '{"version": 1, "partitions": [[]]}',
    plan("1"),
    *[plan(ENTRY, version=f'"version": {number}, ') for number in ("2", "0", '"1"', "1.0", "null", "true", "1e0")],
    *[plan(without(field)) for field in ("topic", "partition", "replicas")],
    *[
        plan(entry(topic=topic))
        for topic in ("", None, 7, ["a"], "ä", "a b", "a.b_c-d", "x" * 300, "a\u0000b", "\u2028")
    ],
    *[plan(entry(partition=number)) for number in (-1, "0", 0.0, 1.5, None, True, 2**31 - 1, 2**31, 2**63)],
    *[
        plan(entry(replicas=value))
        for value in ([], None, 1, "1", ["1"], [1, 1], [-1], [1.0], [1.5], [None], [2**31], [True])
    ],
    *[
        plan(entry(log_dirs=value))
        for value in (["any", "/x"], ["/x"], [], None, "any", [1, 2], ["", "/x"], ["/x", "/x"])
    ],
    plan(entry(log_dirs=["any", "any", "any"])),
    plan(entry(log_dirs=["relative", "/with space/ä"])),
    plan(ENTRY, ENTRY),
    plan(ENTRY, entry(replicas=[3])),
    plan(entry(made_up=1)),
    plan(ENTRY, version='"version": 1, "made_up": 1, '),
    plan(ENTRY.replace('"partition": 0', '"partition": 0, "partition": 1')),
    plan(ENTRY, version='"version": 1, "version": 2, '),
    plan(ENTRY).replace('"topic"', '"Topic"'),
    plan(ENTRY).replace('"a"', r'"\u0061"'),
    plan(ENTRY).replace('"a"', r'"\x61"'),
    plan(ENTRY).replace('"a"', '"a\tb"'),
    plan(ENTRY).replace('"a"', r'"\ud800"'),
    '{"version": 1, "topics": [{"topic": "a"}]}',
]

STRICTER = ("this is no JSON: extra data", "is no id", "topic: a text is expected", "log_dirs: a text is expected")
"""What weir says of files that Kafka's tool takes, and that mean nothing: bytes behind the end, no id, no name."""


def made(count: int = 300) -> list[str]:
    """Files in which one piece was taken out, doubled or changed."""
    chosen = random.Random(30)
    base = plan(ENTRY, entry(partition=1, log_dirs=["any", "/x"]))
    found = []
    for _ in range(count):
        at, size = chosen.randrange(len(base)), chosen.randrange(1, 9)
        piece = chosen.choice(["", base[at : at + size] * 2, chosen.choice('{}[],:"0-1 .ae\\/')])
        found.append(base[:at] + piece + base[at + size :])
    return found


def ours(text: str) -> str:
    """What a file says to weir, as the Java program prints it; else weir's sentence."""

    def encoded(word: str) -> str:
        return base64.urlsafe_b64encode(word.encode(errors="replace")).decode().rstrip("=")

    try:
        read = parse_reassignment(text)
    except InvalidPlan as error:
        return str(error)
    told = {encoded(f"{where.topic}-{where.partition}"): str(list(brokers)) for where, brokers in read.brokers.items()}
    told |= {
        encoded(f"{replica.topic}-{replica.partition} {replica.broker}"): encoded(folder)
        for replica, folder in read.log_dirs.items()
    }
    return "{" + ", ".join(f"{name}={told[name]}" for name in sorted(told)) + "}"


@pytest.mark.integration
def test_kafkas_own_tool_reads_the_same() -> None:
    texts = [*SHAPES, *made()]
    classpath = ":".join(map(str, ensure("4.4.0")))
    asked = "\n".join(base64.b64encode(text.encode(errors="surrogatepass")).decode() for text in texts)
    program = Path(__file__).with_name("Reassignments.java")
    done = subprocess.run(
        [find_java(), "-cp", classpath, program], input=asked, capture_output=True, text=True, timeout=120
    )
    theirs = done.stdout.splitlines()
    assert len(theirs) == len(texts) > 57, done.stderr
    both = [(text, ours(text), said) for text, said in zip(texts, theirs, strict=True)]
    assert sum(own == said for _, own, said in both) > 30
    refused = [one for one in both if not one[1].startswith("{")]
    assert [one for one in both if one not in refused and one[1] != one[2]] == []
    assert [one for one in refused if one[2] != "refused" and not any(words in one[1] for words in STRICTER)] == []
