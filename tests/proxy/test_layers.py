# SPDX-License-Identifier: Apache-2.0
"""The merge of the throttle's layers."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from weir.proxy.layers import (
    EVERYTHING,
    FOREVER,
    SOURCES,
    Entry,
    InForce,
    Layer,
    Lease,
    Path,
    Value,
    hidden_by,
    merge,
    next_expiry,
)

RATE, REPLICAS = ("rate",), ("topics", "orders", "replicas")

PATHS: list[Path] = [
    EVERYTHING,
    *(("rate",), ("other rate",), ("topics",)),
    *(("topics", topic) for topic in "ab"),
    *(("topics", topic, side) for topic in "ab" for side in ("leader", "follower")),
]
LEAVES = [path for path in PATHS if path and path[0] != "topics"] + [path for path in PATHS if len(path) == 3]
NOW = 100.0

leases = st.builds(Lease, st.sampled_from([NOW - 1, NOW, NOW + 1, NOW + 2, math.inf]))
values = st.builds(Entry, st.integers(0, 9), leases)
removals = st.builds(Entry, st.none(), leases)
entries = st.dictionaries(st.sampled_from(LEAVES), values | removals, max_size=6)
prefixes = st.dictionaries(st.sampled_from([path for path in PATHS if path not in LEAVES]), removals, max_size=2)
contents = st.builds(lambda first, second: {**first, **second}, entries, prefixes)


@st.composite
def stacks(draw: st.DrawFn) -> list[Layer]:
    """One layer of each source, the lowest first."""
    return [Layer(source, draw(contents)) for source in SOURCES]


def in_force_at(layers: list[Layer], path: Path, now: float) -> Value | None:
    """What the rule in the docs says of one path: the highest layer that has a word on it decides."""
    for layer in reversed(layers):
        live = {at: entry for at, entry in layer.entries.items() if entry.lease.expires_at > now}
        if path in live:
            return live[path].value
        if any(path[:length] in live for length in range(len(path))):
            return None
    return None


@given(stacks(), st.sampled_from([NOW - 2, NOW, NOW + 1, NOW + 9]))
def test_layers_the_highest_that_says_something_wins(layers: list[Layer], now: float) -> None:
    found = merge(layers, now).values()
    assert {path: found.get(path) for path in LEAVES} == {path: in_force_at(layers, path, now) for path in LEAVES}


@given(stacks(), st.randoms(use_true_random=False))
def test_layers_may_be_merged_in_any_order(layers: list[Layer], shuffling: random.Random) -> None:
    expected = merge(layers, NOW)
    shuffled = [*layers]
    shuffling.shuffle(shuffled)
    shuffled = [Layer(layer.source, dict(reversed([*layer.entries.items()]))) for layer in shuffled]
    assert merge(shuffled, NOW) == expected


@given(stacks())
def test_layers_what_expires_uncovers_what_is_below_unchanged(layers: list[Layer]) -> None:
    """It is as if the entry had never been."""
    later = NOW + 1
    left = [
        Layer(layer.source, {path: entry for path, entry in layer.entries.items() if entry.lease.expires_at > later})
        for layer in layers
    ]
    assert merge(layers, later) == merge(left, later)


@given(stacks())
def test_layers_change_by_themselves_at_the_next_expiry_only(layers: list[Layer]) -> None:
    end = next_expiry(layers, NOW)
    assert merge(layers, min(end, NOW + 100) - 0.5) == merge(layers, NOW)
    assert end in (NOW + 1, NOW + 2, math.inf)


@given(stacks(), st.dictionaries(st.sampled_from(LEAVES), values | removals), st.sampled_from(LEAVES))
def test_layers_a_patch_in_two_halves_is_the_patch(layers: list[Layer], changes: dict[Path, Entry], path: Path) -> None:
    *lower, top = layers
    below = [at for layer in lower for at in layer.entries]
    rest = {at: entry for at, entry in changes.items() if at != path}
    one = {at: entry for at, entry in changes.items() if at == path}
    whole = top.patched(changes, below)
    assert top.patched(rest, below).patched(one, below) == whole == top.patched(one, below).patched(rest, below)


@given(
    stacks(),
    st.dictionaries(st.sampled_from(LEAVES), st.builds(Entry, st.none() | st.integers(0, 9), st.just(FOREVER))),
)
def test_layers_a_patch_on_top_does_what_it_says_and_no_more(layers: list[Layer], changes: dict[Path, Entry]) -> None:
    *lower, top = layers
    before = merge(layers, NOW).values()
    patched = top.patched(changes, [at for layer in lower for at in layer.entries])
    after = merge([*lower, patched], NOW).values()
    assert {at: after.get(at) for at in LEAVES} == {
        at: changes[at].value if at in changes else before.get(at) for at in LEAVES
    }


def test_layers_each_part_has_its_source_and_its_lease() -> None:
    lease = Lease(NOW + 5, "ann", "a move")
    layers = [Layer("file", {RATE: Entry(1), REPLICAS: Entry(2)}), Layer("http", {RATE: Entry(3, lease)})]
    assert merge(layers, NOW).parts == {RATE: InForce(3, "http", lease), REPLICAS: InForce(2, "file", FOREVER)}
    assert merge(layers, NOW + 5).parts[RATE] == InForce(1, "file", FOREVER)
    assert (next_expiry(layers, NOW), next_expiry(layers, NOW + 5)) == (NOW + 5, math.inf)


def test_layers_what_is_removed_and_not_there_leaves_nothing() -> None:
    """Else whoever removes made-up topics fills the layer."""
    removed: dict[Path, Entry] = {("topics", f"t{number}"): Entry(None) for number in range(5)}
    assert Layer("http").patched(removed, [RATE, ("topics", "t3", "replicas")]).entries == {
        ("topics", "t3"): Entry(None)
    }


def test_layers_hidden_is_what_would_be_in_force_otherwise() -> None:
    file = Layer("file", {RATE: Entry(1), ("other rate",): Entry(2), REPLICAS: Entry("*")})
    kafka = Layer("kafka", {RATE: Entry(3)})
    assert hidden_by("http", [file, kafka], NOW) == {}
    assert hidden_by("http", [file, kafka, Layer("http", {RATE: Entry(4)})], NOW) == {"kafka": [RATE]}
    assert hidden_by("http", [file, Layer("http", {RATE: Entry(1)})], NOW) == {}  # it says the same
    ended = Layer("http", {RATE: Entry(4, Lease(NOW))})
    assert hidden_by("http", [file, kafka, ended], NOW) == {}
    removed = Layer("http", {EVERYTHING: Entry(None), ("topics",): Entry(None)})
    assert hidden_by("http", [file, kafka, removed], NOW) == {"kafka": [RATE], "file": [("other rate",), REPLICAS]}
