# SPDX-License-Identifier: Apache-2.0
"""The sum of what all may use, whatever happens to messages, members, networks and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.quota.shares.share import Allotment, Share, Terms, Word, pace_of

pytestmark = pytest.mark.long

RATE = 1000.0
TICK = 0.25
"""How often shares are put in force; what ends in between is used until then."""

DEMANDS = (0.0, 0.0, 10.0, RATE / 4, RATE, 100 * RATE)
EVENTS = (
    *("rounds",) * 16,
    *("demand",) * 4,
    *("late", "late", "tick", "tick", "silence", "heals", "heals"),
    *("cut off", "cut", "one way", "ends", "starts", "starts again", "forgets"),
)


class Sent(NamedTuple):
    """A part or the word on it, which is under way; a member is named with its life."""

    giver: tuple[int, int]
    taker: tuple[int, int]
    part: Allotment
    word: Word | None
    asked_at: float


class World:
    """Members with clocks of their own, what each may use as it was put in force last, and messages under way."""

    def __init__(self, clocks: list[tuple[float, float]], draw: random.Random) -> None:
        self.now = 0.0
        self.draw = draw
        self.clocks = clocks  # what each shows at first, and how fast it runs
        self.ids = frozenset(range(len(clocks)))
        self.lives = dict.fromkeys(self.ids, 0)
        self.down: set[int] = set()
        self.without: set[int] = set()
        self.unheard: set[tuple[int, int]] = set()  # who does not hear whom
        self.under_way: list[Sent] = []
        self.shares: dict[int, Share] = {}
        self.used: dict[int, float] = {}
        self.worst = 0.0  # the largest sum of what all used at a moment
        for one in self.ids:
            self.start(one)

    def clock_of(self, one: int) -> Callable[[], float]:
        begin, speed = self.clocks[one]
        return lambda: begin + self.now * speed

    def start(self, one: int) -> None:
        """Begin a life that knows nothing of those before."""
        self.down.discard(one)
        self.without.discard(one)
        self.lives[one] += 1
        clock = self.clock_of(one)
        quiet_until = clock() + pace_of(len(self.ids)).quiet_seconds
        self.shares[one] = Share(one, Terms(RATE, self.ids), clock, count(1), quiet_until)
        self.put_in_force(one)

    def put_in_force(self, one: int) -> None:
        self.used[one] = self.shares[one].current()
        total = sum(used for other, used in self.used.items() if other not in self.down | self.without)
        self.worst = max(self.worst, total)

    def lives_now(self, one: tuple[int, int]) -> bool:
        return one[0] not in self.down and self.lives[one[0]] == one[1]

    def tell(self, giver: int, taker: int, fate: str) -> None:
        asked_at = self.clock_of(giver)()
        if taker in self.down and (taker, giver) not in self.unheard:
            self.shares[giver].miss(taker, "ended", asked_at)
            return
        part = self.shares[giver].part_for(taker)
        self.put_in_force(giver)
        ends = (giver, self.lives[giver]), (taker, self.lives[taker])
        self.send(Sent(*ends, part, None, asked_at), fate)

    def send(self, message: Sent, fate: str) -> None:
        if fate in ("late", "twice"):
            self.under_way.append(message)
        if fate in ("arrives", "twice"):
            self.arrive(message)

    def arrive(self, message: Sent) -> None:
        giver, taker = message.giver, message.taker
        if message.word is not None:
            if self.lives_now(giver) and (giver[0], taker[0]) not in self.unheard:
                self.shares[giver[0]].hear(taker[0], message.part.number, message.word)
                self.put_in_force(giver[0])
            return
        if not self.lives_now(taker) or (taker[0], giver[0]) in self.unheard:
            return
        if taker[0] in self.without:
            if self.lives_now(giver):
                self.shares[giver[0]].miss(taker[0], "without", message.asked_at)
            return
        word = self.shares[taker[0]].answer(giver[0], giver[1], message.part)
        assert isinstance(word, Word)
        self.put_in_force(taker[0])
        self.send(message._replace(word=word), self.draw.choice(("arrives",) * 5 + ("lost", "late", "twice")))

    def tick(self, seconds: float, losses: float = 0.0) -> None:
        """Let a moment pass: all look at their shares, and those that divide tell the others."""
        self.now += seconds
        for one in self.draw.sample(sorted(self.ids), len(self.ids)):
            if one in self.down or one in self.without:
                continue
            if self.shares[one].divides:
                for other in self.draw.sample(sorted(self.ids), len(self.ids)):
                    if other != one:
                        self.tell(one, other, "lost" if self.draw.random() < losses else "arrives")
            self.put_in_force(one)

    def do(self, event: str) -> None:
        draw, one = self.draw, self.draw.choice(sorted(self.ids))
        match event:
            case "rounds":
                losses = draw.choice((0.0, 0.0, 0.1, 0.5))
                for _ in range(draw.randrange(1, 6)):
                    self.tick(draw.uniform(0.2, TICK), losses)
            case "tick":
                self.tick(draw.uniform(0.01, TICK), 1.0)
            case "silence":
                for _ in range(draw.randrange(1, 30)):
                    self.tick(TICK, 1.0)
            case "demand":
                self.shares[one].demand = draw.choice(DEMANDS)
            case "late" if self.under_way:
                self.arrive(draw.choice(self.under_way[-50:]))
            case "cut":
                self.cut({other for other in self.ids if draw.random() < 0.5})
            case "cut off":
                self.cut({one})
            case "one way":
                self.unheard.add((one, draw.choice(sorted(self.ids))))
            case "ends":
                self.down.add(one)
            case "starts again":
                self.start(one)
            case "starts" if self.down | self.without:
                self.start(draw.choice(sorted(self.down | self.without)))
            case "forgets" if one not in self.down:  # its configuration has the rate no more
                self.without.add(one)
            case "heals":
                self.unheard.clear()
                for other in self.down | self.without:
                    self.start(other)

    def cut(self, here: set[int]) -> None:
        self.unheard |= {(a, b) for a in self.ids for b in self.ids if (a in here) != (b in here)}


def play(clocks: list[tuple[float, float]], seed: int, steps: int = 200) -> float:
    """Let anything happen; returns the largest sum of what all used at a moment, in parts of the rate."""
    world = World(clocks, random.Random(seed))
    for _ in range(steps):
        world.do(world.draw.choice(EVENTS))
    return world.worst / RATE


CLOCKS = st.lists(st.tuples(st.floats(-60, 60), st.floats(0.97, 1.03)), min_size=2, max_size=6)


@settings(max_examples=40, deadline=None)
@given(clocks=CLOCKS, seed=st.integers(0, 2**32))
def test_sum_never_exceeds_the_rate(clocks: list[tuple[float, float]], seed: int) -> None:
    assert play(clocks, seed) <= 1 + 1e-9


@pytest.mark.parametrize("seed", [578, 729, 10028])
def test_sum_never_exceeds_the_rate_when_one_joins_under_way(seed: int) -> None:
    """With all others ended, one had given more than rate / N to one that never said that it took any."""
    draw = random.Random(seed * 7919 + 1)
    clocks = [(draw.uniform(-60, 60), draw.uniform(0.97, 1.03)) for _ in range(draw.randint(2, 6))]
    assert play(clocks, seed, 300) <= 1 + 1e-9
