# SPDX-License-Identifier: Apache-2.0
"""The clients that rules cover, and their groups. Bounded: the client that was not seen for longest goes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from weir.limits.group import Group, Waiting
from weir.limits.rate_limiter import Batch
from weir.limits.rates import TaskRates
from weir.limits.rules import Rule

MOST_CLIENTS: Final = 1000
"""The most client ids that have limiters and metrics of their own."""

OnFault = Callable[[str, str, str], None]
"""Told of a limiter that was disabled: the client or what shares the limiter, the limiter's name, and the reason."""

GroupKey = tuple[str, str, str]  # the rule's pattern, what it is per, and the group's name: no two rules have the same


Owed = tuple[str, str, str, float]
"""A group's key, and the seconds of its whole limit that it owes."""


class Client:
    """One client id with its groups, one for each rule that covers it.

    All of its connections share it. Made by Clients.
    """

    __slots__ = ("_clock", "_groups", "_ranked", "client_id", "is_free", "rates")

    def __init__(self, client_id: str, groups: Sequence[Group], clock: Callable[[], float]) -> None:
        self.client_id = client_id
        self.rates = TaskRates(clock)
        self._clock = clock
        self.set_groups(groups)

    @property
    def groups(self) -> Sequence[Group]:
        """The limits that its requests wait for: one group for each rule that covers it."""
        return self._groups

    @property
    def is_shared(self) -> bool:
        """Whether other sidecars have parts of its limits."""
        return any([group.share < 1 for group in self._groups])

    def set_groups(self, groups: Sequence[Group]) -> None:
        """Take other groups, as the rules changed."""
        self._groups = tuple(groups)
        self._ranked = [(group, group.rule.rank(self.client_id)) for group in groups]
        self.is_free: Callable[[], bool] = (
            self._groups[0].is_free if len(groups) == 1 else partial(_are_free, self._groups)
        )
        """Returns whether a request goes at once, whatever connection asks."""

    def count(self, batches: Sequence[Batch]) -> None:
        """Account for one Fetch answer or Produce request that has passed."""
        if not batches:
            return
        if len(self._groups) == 1:
            counted = self._groups[0].take(batches)
        else:
            seen = {batch for group in self._groups for batch in group.take(batches)}
            counted = [batch for batch in batches if batch in seen]
        records = 0
        for batch in counted:
            records += batch.records
        self.rates.add(records)

    def pause(self) -> float:
        """Return how many seconds the next request has to wait: the longest of all pauses, never their sum."""
        groups = self._groups
        return groups[0].pause() if len(groups) == 1 else max([group.pause() for group in groups], default=0.0)

    def owed(self) -> list[Owed]:
        """Return what its groups owe."""
        return [
            (group.rule.pattern, group.rule.per, group.rule.group_of(self.client_id), owed)
            for group in self._groups
            if (owed := group.owed) > 0
        ]

    def expected_wait(self) -> float:
        """Return how many seconds a request that comes next will wait, behind all that are in line."""
        return max([group.expected_wait() for group in self._groups], default=0.0)

    def asks(self, who: Waiting) -> float:
        """Return how many seconds a request of connection `who` has to wait before it asks again; 0 where it goes."""
        wait = 0.0
        for group, rank in self._ranked:
            wait = max(wait, group.asks(who, rank))
        return wait

    def goes(self, who: Waiting) -> None:
        """Note that the request of `who` goes now."""
        for group in self._groups:
            group.goes(who)

    def sent_away(self, who: Waiting) -> None:
        """Note that `who` got an answer without its turn, and is to ask again."""
        for group in self._groups:
            group.sent_away(who)

    def answered(self, who: Waiting) -> None:
        """Note that `who` has got its answers, while a later request of it waits."""
        for group in self._groups:
            group.answered(who)

    def leaves(self, who: Waiting) -> None:
        """Note that the answer for `who` has come and nothing of it waits, or that its connection has ended."""
        for group in self._groups:
            group.leaves(who)


def _are_free(groups: Sequence[Group]) -> bool:
    return all([group.is_free() for group in groups])


class Clients:
    """All clients that `rules` cover. `clock` gives seconds. Every rule that covers a client counts for it."""

    def __init__(self, clock: Callable[[], float], on_fault: OnFault, most: int = MOST_CLIENTS) -> None:
        self._clock = clock
        self._on_fault = on_fault
        self._most = most
        self._rules: tuple[Rule, ...] = ()
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._uncovered: set[str] = set()
        self._groups: dict[GroupKey, Group] = {}
        self.on_group: Callable[[], None] = lambda: None
        """Called when a group is made, or used again after it rested."""
        self._wanted: OrderedDict[GroupKey, None] = OrderedDict()  # groups that others share, of clients not seen here
        self.generation = 0
        """Grows when what `of` returned before may be another client now."""
        self.evicted = 0
        """Clients that gave way to others."""
        self.disabled = 0
        """Limiters that were disabled for what they did."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in force."""
        return self._rules

    @property
    def groups(self) -> Mapping[GroupKey, Group]:
        """All groups, by their rule's pattern, what it is per, and their names."""
        return self._groups

    def want_group(self, key: GroupKey) -> bool:
        """Have a group that others share although no client of it was seen here; returns whether there is its rule."""
        if key not in self._groups:
            rule = next((rule for rule in self._rules if (rule.pattern, rule.per) == key[:2]), None)
            if rule is None:
                return False
            self._groups[key] = self._new_group(rule, key[2])
            self._wanted[key] = None
            if len(self._wanted) > self._most:
                oldest, _ = self._wanted.popitem(last=False)
                self._drop_unused([group for one, group in self._groups.items() if one == oldest])
        return True

    def owed(self) -> list[Owed]:
        """Return what all groups owe."""
        return [(*key, owed) for key, group in self._groups.items() if (owed := group.owed) > 0]

    def owe(self, owed: Iterable[Owed]) -> None:
        """Have groups owe at least that, as they did in the process before. What has no rule any more is left out."""
        for pattern, per, name, seconds in owed:
            if self.want_group((pattern, per, name)):
                self._groups[pattern, per, name].owe(seconds)

    def __iter__(self) -> Iterator[Client]:
        """Yield the clients seen lately."""
        return iter(list(self._clients.values()))

    def of(self, client_id: str) -> Client | None:
        """Return the client of this id; None where no rule covers it."""
        client = self._clients.get(client_id)
        if client is not None:
            self._clients.move_to_end(client_id)
        elif client_id not in self._uncovered:
            client = self._new(client_id)
        return client

    def configure(self, rules: Sequence[Rule]) -> None:
        """Put other rules in force, and have all requests that wait ask again.

        A group whose rule has changed only in its settings goes on with what it owes.
        """
        self._rules = tuple(rules)
        self.generation += 1
        old, self._groups = self._groups, {}
        clients, self._clients = self._clients, OrderedDict()
        self._uncovered.clear()
        for name, client in clients.items():
            groups = self._groups_of(name, old)
            if groups:
                client.set_groups(groups)
                self._clients[name] = client
            else:
                client.set_groups(())
        self._wanted.clear()
        for key, group in old.items():
            if self._groups.get(key) is not group:
                group.close()

    def _new(self, client_id: str) -> Client | None:
        groups = self._groups_of(client_id, {})
        if not groups:
            if len(self._uncovered) >= self._most:
                self._uncovered.clear()
            self._uncovered.add(client_id)
            return None
        client = self._clients[client_id] = Client(client_id, groups, self._clock)
        if len(self._clients) > self._most:
            _, gone = self._clients.popitem(last=False)
            self.evicted += 1
            self.generation += 1
            self._drop_unused(gone.groups)
        return client

    def _groups_of(self, client_id: str, old: dict[GroupKey, Group]) -> list[Group]:
        groups = []
        for rule in self._rules:
            if rule.covers(client_id):
                name = rule.group_of(client_id)
                key = rule.pattern, rule.per, name
                if key not in self._groups:
                    self._groups[key] = self._kept(old.get(key), rule) or self._new_group(rule, name)
                if self._groups[key] not in groups:
                    groups.append(self._groups[key])
        return groups

    def _kept(self, group: Group | None, rule: Rule) -> Group | None:
        if group is None or [one.make for one in group.rule.limiters] != [one.make for one in rule.limiters]:
            return None
        if group.rule != rule:
            group.configure(rule)
        return group

    def _new_group(self, rule: Rule, name: str) -> Group:
        def fault(limiter: str, reason: str) -> None:
            self.disabled += 1
            self._on_fault(name, limiter, reason)

        group = Group(rule, self._clock, fault, lambda: self.on_group())
        if group.limits:
            self.on_group()
        return group

    def _drop_unused(self, groups: Sequence[Group]) -> None:
        used = {id(group) for client in self for group in client.groups}
        for key, group in list(self._groups.items()):
            if group in groups and id(group) not in used:
                del self._groups[key]
                group.close()
