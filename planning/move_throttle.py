# SPDX-License-Identifier: Apache-2.0
"""Kafka's own throttle for a move: what is set for it, and what is put back when it has ended.

Every change leaves alone what others own. Lists of throttled replicas grow and shrink by single entries (APPEND and
SUBTRACT of IncrementalAlterConfigs, KIP-339). What was set is written down as claims: a claim on a list has the entries
that were not there before, a claim on a rate has what stood before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from weir.planning.assignment import Brokers, Partition, PartitionMove, Reassignment
from weir.quota.settings import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS

DISK_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE, DISK_RATE)
LISTS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)

_ALL: Final = "*"

Entry = str
"""One throttled replica, [partition]:[broker]."""

Operation = Literal["set", "delete", "append", "subtract"]

Rates = int | Mapping[tuple[int, str], int]
"""Bytes/s: one rate for all, or rates by (broker, setting)."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one setting, of a broker or a topic. `value` is empty where it is deleted."""

    kind: Literal["broker", "topic"]
    name: str
    setting: str
    operation: Operation
    value: str = ""


@dataclass(frozen=True, slots=True)
class RateClaim:
    """A move sets a broker's rate. `before` is the broker's own rate until then; None: it had none.

    `values` are the rates that it may have set: the newest last, and the one before, which stands where the move was
    killed between writing the claim down and setting the rate.
    `shared`: others' lists named the broker when the move began. So `before` may be the rate of another move, which
    takes it away itself.
    """

    broker: int
    setting: str
    before: str | None
    values: tuple[str, ...]
    shared: bool = False

    @property
    def value(self) -> str:
        """The rate that the move wants."""
        return self.values[-1]

    def change(self, rate: str | None) -> ConfigChange:
        """Return what sets the broker's rate, or deletes it (None)."""
        operation: Operation = "set" if rate is not None else "delete"
        return ConfigChange("broker", str(self.broker), self.setting, operation, rate or "")


@dataclass(frozen=True, slots=True)
class ListClaim:
    """A move has added `entries` to a topic's list. `stood`: an empty list was there before, and is there afterwards.

    A list that had others' entries is deleted when none is left in the end. Example: two moves share a list. The one
    that ends first leaves the other's entries in it, so the one that ends last deletes it.
    """

    topic: str
    setting: str
    entries: tuple[Entry, ...]
    stood: bool

    def change(self, operation: Operation, entries: Iterable[Entry] = ()) -> ConfigChange:
        """Return what adds entries to the list, takes them out, or deletes it."""
        return ConfigChange("topic", self.topic, self.setting, operation, ",".join(entries))

    def is_taken_back(self, standing: Standing) -> bool:
        """Whether the cluster shows the list after its entries were added and taken out, or has the topic no more."""
        if self.topic not in standing.lists:
            return True
        if self.setting not in standing.lists[self.topic]:
            return False
        listed = standing.listed(self.topic, self.setting)
        return listed is None or listed.isdisjoint(self.entries)


@dataclass(frozen=True, slots=True)
class Claims:
    """All that one move has set."""

    rates: tuple[RateClaim, ...] = ()
    lists: tuple[ListClaim, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rates or any(claim.entries for claim in self.lists))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics whose lists it has changed."""
        return tuple(sorted({claim.topic for claim in self.lists}))

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions of which it throttles a replica."""
        listed = [(claim.topic, entry) for claim in self.lists for entry in claim.entries]
        return frozenset([_partition(topic, entry) for topic, entry in listed])

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers whose rates it has changed."""
        return tuple(sorted({claim.broker for claim in self.rates}))


@dataclass(frozen=True, slots=True)
class Standing:
    """What is set in the cluster: own values of brokers and topics, without defaults.

    A broker that is not in `rates` gave no answer. A topic that is not in `lists` does not exist.
    """

    rates: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    lists: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def rate(self, claim: RateClaim) -> str | None:
        """Return what the broker has in the claim's place; None where it has nothing, or gave no answer."""
        return self.rates.get(claim.broker, {}).get(claim.setting)

    def listed(self, topic: str, setting: str) -> frozenset[Entry] | None:
        """Return a list's entries, None for `*`."""
        text = self.lists.get(topic, {}).get(setting, "")
        entries = frozenset(stripped for entry in text.split(",") if (stripped := entry.strip()))
        return None if entries == {_ALL} else entries


@dataclass(frozen=True, slots=True)
class Wanted:
    """The throttle that a move needs: rates by (broker, setting), entries by (topic, setting)."""

    rates: Mapping[tuple[int, str], int]
    lists: Mapping[tuple[str, str], frozenset[Entry]]


@dataclass(frozen=True, slots=True)
class LeftRate:
    """A rate that was not put back. `standing` is what is set; None where the broker gives no answer.

    `needed_by`: a partition of another move that is under way under this rate.
    """

    claim: RateClaim
    standing: str | None
    needed_by: Partition | None = None


@dataclass(frozen=True, slots=True)
class PutBack:
    """Changes that put back what stood before a move, and what has to stay as it is for now.

    `by_plan`: nothing was written down, and the plan alone told what was set.
    """

    changes: tuple[ConfigChange, ...] = ()
    left: tuple[LeftRate, ...] = ()
    by_plan: bool = False


def wanted_throttle(
    moves: Mapping[Partition, PartitionMove],
    wanted: Rates | None,
    disk_brokers: Collection[int] = (),
    disk_rate: int | None = None,
) -> Wanted:
    """Return the throttle of a move, as kafka-reassign-partitions sets it. Rates are in bytes/s; None sets none.

    Every replica that stands now is throttled as a leader, for any of them may be elected; only new ones are throttled
    as followers. What moves nothing is not throttled.
    """
    rates: dict[tuple[int, str], int] = {}
    lists: dict[tuple[str, str], set[Entry]] = {}
    for partition, move in moves.items():
        if wanted is None or not move.destinations:
            continue
        for key in ((broker, setting) for broker in move.brokers for setting in (LEADER_RATE, FOLLOWER_RATE)):
            rates[key] = wanted if isinstance(wanted, int) else wanted[key]
        for setting, brokers in ((LEADER_REPLICAS, move.sources), (FOLLOWER_REPLICAS, move.destinations)):
            entries = {f"{partition.partition}:{broker}" for broker in brokers}
            lists.setdefault((partition.topic, setting), set()).update(entries)
    if disk_rate is not None:
        rates |= {(broker, DISK_RATE): disk_rate for broker in disk_brokers}
    return Wanted(rates, {key: frozenset(entries) for key, entries in lists.items()})


def claims_for(wanted: Wanted, standing: Standing, earlier: Claims) -> Claims:
    """Return what a move owns once `wanted` is set; `earlier` is what it owned before, if it was begun before.

    Written down before anything is changed, so that nothing is ever set that no claim knows of.
    """
    rates = {(claim.broker, claim.setting): claim for claim in earlier.rates}
    used = _used_by_others(earlier, standing)
    for (broker, setting), rate in wanted.rates.items():
        if broker not in standing.rates:
            continue
        now = standing.rates[broker].get(setting)
        owned = rates.get((broker, setting))
        if owned is not None and now in owned.values:
            rates[broker, setting] = replace(owned, values=(now, str(rate)))
        else:
            rates[broker, setting] = RateClaim(broker, setting, now, (str(rate),), shared=broker in used)
    lists = {(claim.topic, claim.setting): claim for claim in earlier.lists}
    for (topic, setting), entries in wanted.lists.items():
        if topic not in standing.lists:
            continue
        is_empty = standing.lists[topic].get(setting) == ""
        claim = lists.get((topic, setting), ListClaim(topic, setting, (), stood=is_empty))
        listed = standing.listed(topic, setting)
        owned_entries = frozenset() if listed is None else (listed & {*claim.entries}) | (entries - listed)
        lists[topic, setting] = replace(claim, entries=_sorted(owned_entries))
    return Claims(tuple(rates.values()), tuple(lists.values()))


def lists_after(claims: Claims, standing: Standing) -> Iterator[tuple[str, str, frozenset[Entry]]]:
    """Yield the lists that a move adds to: the topic, the setting, and all entries that it then has."""
    for claim in claims.lists:
        listed = standing.listed(claim.topic, claim.setting)
        if claim.topic in standing.lists and listed is not None:
            yield claim.topic, claim.setting, listed.union(claim.entries)


def changes_to_set(claims: Claims, standing: Standing) -> tuple[ConfigChange, ...]:
    """Return what sets a move's throttle: lists first, which throttle nothing until there is a rate."""
    changes = []
    for claim in claims.lists:
        listed = standing.listed(claim.topic, claim.setting)
        if claim.topic in standing.lists and listed is not None and (missing := set(claim.entries) - listed):
            changes.append(claim.change("append", _sorted(missing)))
    rates = (rate for rate in claims.rates if rate.broker in standing.rates and standing.rate(rate) != rate.value)
    return (*changes, *(rate.change(rate.value) for rate in rates))


def rated_anew(claims: Claims, standing: Standing, wanted: Rates) -> tuple[Claims, tuple[ConfigChange, ...]]:
    """Return the claims and changes that give the replication rates of a move that runs other values.

    Those that `wanted` leaves out stay as they are. A rate that is not what the move has set is somebody else's by now,
    and stays; so does that of a broker that is down.
    """
    rates = []
    changes = []
    for claim in claims.rates:
        now = standing.rate(claim)
        rate = wanted if isinstance(wanted, int) else wanted.get((claim.broker, claim.setting))
        if claim.setting == DISK_RATE or rate is None or now not in claim.values or now == str(rate):
            rates.append(claim)
            continue
        rates.append(replace(claim, values=(now, str(rate))))
        changes.append(claim.change(str(rate)))
    return Claims(tuple(rates), claims.lists), tuple(changes)


def put_back(
    claims: Claims,
    standing: Standing,
    still_moving: Collection[Partition] = (),
    under_way: Mapping[Partition, Reassignment] | None = None,
) -> PutBack:
    """Return what puts back what stood before a move, whatever else has changed since.

    `standing` has the lists of all topics: they tell whether somebody else's throttle uses a broker. `still_moving` are
    partitions of the plan that go on; they keep their entries, and all rates stay for them. `under_way` are all moves
    of the cluster.

    The move's own rate stays while another move needs it: one that is under way, and whose replicas on that broker are
    in a list. It may have found the rate as it wants it, and changed nothing.

    A rate that is not what the move has set was changed by somebody. Where others' lists name the broker it may be the
    rate of another move, and stays. Where nobody else's do, it was this move's rate that was changed or removed, and
    what stood before comes back: unless it was for others' lists and both are gone, for then its owner has ended.
    Rates go first: where this is interrupted, the entries still tell which brokers had one.
    """
    changes: list[ConfigChange] = []
    left: list[LeftRate] = []
    used = _used_by_others(claims, standing)
    needed = needed_by_others(claims, standing, under_way or {})
    for claim in claims.rates if not still_moving else ():
        now, is_used, is_disk = standing.rate(claim), claim.broker in used, claim.setting == DISK_RATE
        if claim.broker not in standing.rates:
            left.append(LeftRate(claim, None))
        elif now == claim.before or (now is None and claim.shared and not is_used):
            continue
        elif now is not None and now not in claim.values and (is_disk or is_used):
            left.append(LeftRate(claim, now))
        elif now in claim.values and not is_disk and claim.broker in needed:
            left.append(LeftRate(claim, now, needed[claim.broker]))
        else:
            changes.append(claim.change(claim.before))
    for of_topic in claims.lists:
        listed = standing.listed(of_topic.topic, of_topic.setting) or frozenset()
        ended = [entry for entry in of_topic.entries if _partition(of_topic.topic, entry) not in still_moving]
        if gone := [entry for entry in ended if entry in listed]:
            changes.append(of_topic.change("subtract", gone))
    return PutBack(tuple(changes), tuple(left))


def emptied_lists(claims: Claims, standing: Standing) -> tuple[ConfigChange, ...]:
    """Return what deletes lists that a move had begun, and that are empty now: a topic then has Kafka's default."""
    return tuple(
        claim.change("delete")
        for claim in claims.lists
        if not claim.stood and standing.lists.get(claim.topic, {}).get(claim.setting) == ""
    )


def claims_by_the_plan(
    plan: Mapping[Partition, Brokers], before: Mapping[Partition, Brokers], standing: Standing
) -> Claims:
    """Return what a move has probably set, where nothing was written down or the file is lost.

    Of the plan's partitions these are all entries that the move would have made: new replicas as followers, and those
    of `before` as leaders; where that is not known either, all leaders. Of the brokers in these entries, their rates,
    unless others' lists name them too. What stood before is not known, so nothing takes the place of what goes.
    """

    def is_made(partition: Partition, setting: str, broker: int) -> bool:
        brokers = plan if setting == FOLLOWER_REPLICAS else before
        return partition in plan and (partition not in brokers or broker in brokers[partition])

    lists = []
    for topic in sorted({partition.topic for partition in plan}):
        for setting in LISTS:
            listed = standing.listed(topic, setting) or frozenset()
            made = [entry for entry in listed if is_made(_partition(topic, entry), setting, _broker(entry))]
            if made:
                lists.append(ListClaim(topic, setting, _sorted(made), stood=False))
    used = _used_by_others(Claims((), tuple(lists)), standing)
    rates = tuple(
        RateClaim(broker, setting, None, (standing.rates[broker][setting],))
        for broker in sorted({_broker(entry) for claim in lists for entry in claim.entries})
        for setting in (LEADER_RATE, FOLLOWER_RATE)
        if broker not in used and setting in standing.rates.get(broker, {})
    )
    return Claims(rates, tuple(lists))


def are_used_by_others(claims: Claims, standing: Standing) -> bool:
    """Return whether single entries that are not the move's own name brokers whose rates it has set."""
    brokers = {claim.broker for claim in claims.rates if claim.setting != DISK_RATE}
    return any(_broker(entry) in brokers for others in _others(claims, standing).values() for entry in others or ())


def needed_by_others(
    claims: Claims, standing: Standing, under_way: Mapping[Partition, Reassignment]
) -> dict[int, Partition]:
    """Return the brokers on which a partition of another move is throttled while it is under way, with the first."""
    others = _others(claims, standing)
    needed: dict[int, Partition] = {}
    for partition, move in sorted(under_way.items()):
        for listed in (others.get((partition.topic, setting), frozenset()) for setting in LISTS):
            for broker in move.replicas:
                if listed is None or f"{partition.partition}:{broker}" in listed:
                    needed.setdefault(broker, partition)
    return needed


def _used_by_others(claims: Claims, standing: Standing) -> frozenset[int]:
    """Return the brokers of all throttled replicas that are not the move's own; all brokers where a list is `*`."""
    others = _others(claims, standing).values()
    if None in others:
        return frozenset(standing.rates)
    return frozenset(_broker(entry) for listed in others for entry in listed or ())


def _others(claims: Claims, standing: Standing) -> dict[tuple[str, str], frozenset[Entry] | None]:
    """Return the entries that are not the move's own, by (topic, setting); None for `*`."""
    own = {(claim.topic, claim.setting): frozenset(claim.entries) for claim in claims.lists}
    others: dict[tuple[str, str], frozenset[Entry] | None] = {}
    for key in ((topic, setting) for topic, settings in standing.lists.items() for setting in settings):
        listed = standing.listed(*key)
        others[key] = None if listed is None else listed - own.get(key, frozenset())
    return others


def _partition(topic: str, entry: Entry) -> Partition:
    return Partition(topic, int(entry.partition(":")[0]))


def _broker(entry: Entry) -> int:
    return int(entry.partition(":")[2])


def _sorted(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: tuple(map(int, entry.split(":")))))
