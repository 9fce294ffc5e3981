"""The sum of all parts, whatever happens to messages, members and clocks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.proxy.shares.exchange import ANSWER_SECONDS
from weir.quota.shares.roll import Roll
from weir.quota.shares.share import Report, Share, Terms

RATE = 1000.0
MOST_SILENT_SECONDS = 3.0
"""Between those that can reach each other a message arrives as often at least."""

FATES = ("arrives", "arrives", "is lost", "is late", "comes twice")


class Request(NamedTuple):
    sender: int
    receiver: int
    life: int  # of the sender
    number: int
    report: Report
    misses: frozenset[int]
    at: float


class Answer(NamedTuple):
    to: Request
    size: float
    seconds: float
    misses: frozenset[int]


class World:
    """Members with clocks of their own, and the messages that are under way."""

    def __init__(self, offsets: list[float], latest_seconds: float = math.inf) -> None:
        self.latest_seconds = latest_seconds  # a message that is later is lost
        self.now = 0.0
        self.ids = frozenset(range(len(offsets)))
        self.offsets = offsets
        self.number = 0
        self.cut: set[int] = set()
        self.down: set[int] = set()
        self.lives = dict.fromkeys(self.ids, 0)
        self.under_way: list[Request | Answer] = []
        self.rolls: dict[int, Roll] = {}
        self.shares: dict[int, Share] = {}
        for one in self.ids:
            self.start(one)

    def clock_of(self, one: int) -> Callable[[], float]:
        return lambda: self.now + self.offsets[one]

    def start(self, one: int) -> None:
        """Begin a life that knows nothing of those before."""
        self.down.discard(one)
        self.lives[one] += 1
        clock = self.clock_of(one)
        roll = self.rolls[one] = Roll(one, clock)
        roll.set_members(self.ids)
        roll.begin()
        self.shares[one] = Share(Terms(RATE, self.ids), roll, clock)

    def reaches(self, one: int, other: int) -> bool:
        return not {one, other} & (self.cut | self.down)

    def ask(self, one: int, other: int, fate: str) -> None:
        if one == other or one in self.down:
            return
        if other in self.down and not {one, other} & self.cut:
            self.rolls[one].refuse(other)
            return
        self.number += 1
        report = self.shares[one].report(other)
        misses = self.rolls[one].missing(self.ids)
        at = self.clock_of(one)()
        self.send(Request(one, other, self.lives[one], self.number, report, misses, at), fate)

    def send(self, message: Request | Answer, fate: str) -> None:
        if fate == "is lost":
            return
        if fate != "arrives":
            self.under_way.append(message)
        if fate != "is late":
            self.arrive(message)

    def arrive(self, message: Request | Answer) -> None:
        asked = message.to if isinstance(message, Answer) else message
        if self.clock_of(asked.sender)() - asked.at > self.latest_seconds:
            return
        if isinstance(message, Answer):
            to = message.to
            if self.reaches(to.sender, to.receiver) and self.lives[to.sender] == to.life:
                self.rolls[to.sender].hear(to.receiver, message.misses, to.at)
                self.shares[to.sender].take(to.receiver, to.number, message.size, message.seconds, to.at)
            return
        if not self.reaches(message.sender, message.receiver):
            return
        roll = self.rolls[message.receiver]
        size, refusal = self.shares[message.receiver].lend(message.sender, message.number, message.report)
        if refusal is None:
            roll.hear(message.sender, message.misses)
        fate = FATES[message.number % len(FATES)]
        self.send(Answer(message, size, roll.pace.loan_seconds, roll.missing(self.ids)), fate)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; those that can reach each other are never silent for long."""
        self.now += seconds
        for one in self.ids:
            for other in self.ids - {one}:
                if self.rolls[one].heard_ages().get(other, math.inf) > MOST_SILENT_SECONDS and self.reaches(one, other):
                    self.ask(other, one, "arrives")

    def total(self) -> float:
        return sum(self.shares[one].current() for one in self.ids - self.down)


DEMANDS = (0.0, 10.0, RATE / 4, RATE, 100 * RATE)
STEPS = 200

OFFSETS = st.lists(st.floats(-60, 60), min_size=2, max_size=5)
SEEDS = st.integers(0, 2**32)


def play(offsets: list[float], seed: int, most: float, faults: tuple[str, ...] = ()) -> None:
    """Let anything happen; the sum never exceeds `most`. Only member 0 is cut off, or ends.

    What was said before one ended and began anew would mislead others if it came later than a sidecar waits for it.
    """
    world, draw = World(offsets, ANSWER_SECONDS if "ends" in faults else math.inf), random.Random(seed)
    world.pass_time(3.0)
    count = len(offsets)
    events = [*["ask"] * 12, "demand", "demand", "time", "time", "arrive", "arrive", *faults]
    for _ in range(STEPS):
        match draw.choice(events):
            case "ask":
                world.ask(draw.randrange(count), draw.randrange(count), draw.choice(FATES))
            case "demand":
                world.shares[draw.randrange(count)].demand = draw.choice(DEMANDS)
            case "time":
                world.pass_time(draw.uniform(0.01, 1.5))
            case "arrive" if world.under_way:
                world.arrive(draw.choice(world.under_way[-20:]))
            case "is cut off":
                world.cut.add(0)
            case "is back":
                world.cut.clear()
                world.pass_time(0)
            case "ends":
                world.down.add(0)
            case "starts" if world.down:
                world.start(0)
                world.pass_time(0)
        assert world.total() <= most * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(offsets=OFFSETS, seed=SEEDS)
def test_sum_never_exceeds_the_rate(offsets: list[float], seed: int) -> None:
    play(offsets, seed, RATE)


@settings(max_examples=40, deadline=None)
@given(offsets=OFFSETS, seed=SEEDS)
def test_sum_never_exceeds_the_rate_when_one_ends_and_starts_again(offsets: list[float], seed: int) -> None:
    play(offsets, seed, RATE, ("ends", "starts"))


@pytest.mark.parametrize("seed", [1306, 2357])
def test_sum_never_exceeds_the_rate_when_one_ends_twice(seed: int) -> None:
    """What was said of its first end counts for nothing at the second, and a loan of its first life is over."""
    play([0.0, 0.0, 0.0], seed, RATE, ("ends", "starts"))


@settings(max_examples=40, deadline=None)
@given(offsets=OFFSETS, seed=SEEDS)
def test_sum_exceeds_the_rate_by_one_part_at_most_when_one_is_cut_off(offsets: list[float], seed: int) -> None:
    play(offsets, seed, RATE * (1 + 1 / len(offsets)), ("is cut off", "is back"))


def test_one_that_is_cut_off_uses_its_part_while_the_others_divide_it() -> None:
    world = World([0.0, 60.0, -60.0])
    for share in world.shares.values():
        share.demand = RATE

    def pass_rounds(rounds: int) -> float:
        for _ in range(rounds):
            for one in world.ids:
                for other in world.ids:
                    world.ask(one, other, "arrives")
            world.pass_time(1.0)
        return world.total()

    assert pass_rounds(10) == pytest.approx(RATE)
    world.cut.add(0)
    assert pass_rounds(10) == pytest.approx(RATE * 4 / 3)
    world.cut.clear()
    assert pass_rounds(10) == pytest.approx(RATE)
    world.down.add(0)
    assert pass_rounds(10) == pytest.approx(RATE)
