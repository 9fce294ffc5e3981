# SPDX-License-Identifier: Apache-2.0
"""The throttle of a move: sets it in the cluster, writes down what it has set, and puts back what stood before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from weir.control.errors import ControlError, MoveError
from weir.control.move_admin import MoveAdmin
from weir.control.move_journal import Journal, JournalFile, Pacing
from weir.planning.assignment import Brokers, Partition
from weir.planning.move_throttle import (
    Claims,
    ConfigChange,
    PutBack,
    Rates,
    Standing,
    Wanted,
    are_used_by_others,
    changes_to_set,
    claims_by_the_plan,
    claims_for,
    emptied_lists,
    lists_after,
    needed_by_others,
    put_back,
    rated_anew,
)

LONGEST_VALUE = 32_767
"""Characters of one setting. With a longer one brokers close the connection, and say nothing (KAFKA-17993)."""

_RETRY_SECONDS = 0.5

SEEN_SECONDS = 30.0
"""How long brokers may take to show what the controller has accepted. While they make a large topic, it takes some.
"""

MOST_SEEN_SECONDS = 120.0
"""How long all changes together may take to be shown."""

POLL_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""How long nothing may move of what is throttled before that counts as ended.

Somebody elsewhere may be about to begin the next partitions.
"""


class MoveThrottling:
    """The one owner of a move's throttle: of what it has set in the cluster, and of the journal that says so."""

    def __init__(self, admin: MoveAdmin, file: JournalFile) -> None:
        self._admin = admin
        self._file = file
        self._cluster_id = admin.cluster_id()

    @property
    def journal(self) -> Journal | None:
        """What is written down of a move that is not over; None where nothing is, or the file is lost."""
        journal = self._file.read(self._cluster_id)
        return None if journal is None or journal.ended else journal

    @property
    def claims(self) -> Claims:
        """What is written down as set, and is not put back yet."""
        journal = self.journal
        return journal.claims if journal is not None else Claims()

    def begin(self, wanted: Wanted, pacing: Pacing | None = None, *, undo: bool = True) -> None:
        """Write down what is to be set and how it is kept, set it, and read it back. Brokers that are down are not set.

        Where that fails, `undo` puts back what was set. It may not do so while something moves.
        """
        earlier = self.claims
        brokers = {broker for broker, _ in wanted.rates} | set(earlier.brokers)
        topics = {topic for topic, _ in wanted.lists} | set(earlier.topics)
        standing = self._standing(brokers, topics, self._all_topics())
        claims = claims_for(wanted, standing, earlier)
        for topic, setting, listed in lists_after(claims, standing):
            if (length := len(",".join(listed))) > LONGEST_VALUE:
                most = len(listed) * LONGEST_VALUE // length
                raise MoveError(
                    f"{setting} of topic {topic} would have {length:,} characters, and brokers take {LONGEST_VALUE:,}:"
                    f" make plans with which at most {most:,} of its replicas are listed at once, and begin the next"
                    " when one has ended"
                )
        self._file.write(Journal(self._cluster_id, claims, pacing=pacing))
        try:
            self._until_nothing_to_do(
                "Setting the throttle", lambda: changes_to_set(claims, self._standing(standing.rates, topics))
            )
        except (ControlError, MoveError) as error:
            if undo and not self._try_to_undo():
                raise MoveError(f"{error}; what was set of it is there still: `weir move verify` removes it") from error
            raise

    def keep(self, pacing: Pacing) -> None:
        """Write down how the rate of a move that runs is kept from now on."""
        journal = self.journal
        if journal is not None and journal.pacing != pacing:
            self._file.write(replace(journal, pacing=pacing))

    def change_rates(self, rates: Rates) -> None:
        """Give the rates that the move has set, and nobody has changed since, other values; or some of them.

        What is to be set is written down first, so a kill leaves what the next `verify` puts back.
        """
        journal = self.journal
        if journal is None:
            return
        claims = journal.claims

        def to_do() -> tuple[ConfigChange, ...]:
            nonlocal claims
            standing = self._standing(claims.brokers, ())
            claims, changes = rated_anew(claims, standing, rates)
            self._file.write(replace(journal, claims=claims))
            return changes

        self._until_nothing_to_do("Changing the throttle", to_do)

    def undo(self) -> None:
        """Put back what stood before a move that could not begin.

        Brokers may not show yet what was set, and would show it later. So all of it is taken back unseen: the
        controller does one change after the other. A list that is left empty is deleted as soon as it shows.
        """
        claims = self.claims
        up = set(self._admin.brokers())
        rates = [claim.change(claim.before) for claim in claims.rates if claim.broker in up]
        lists = [claim for claim in claims.lists if claim.entries]
        refused = self._order([*rates, *[claim.change("subtract", claim.entries) for claim in lists]])
        begun = self._admin.clock()
        while lists and not refused:
            standing = self._standing((), [claim.topic for claim in lists])
            shown = [claim for claim in lists if claim.is_taken_back(standing)]
            refused = self._order(emptied_lists(Claims(lists=tuple(shown)), standing))
            lists = [claim for claim in lists if claim not in shown]
            if lists and self._admin.clock() - begun >= 2 * SEEN_SECONDS:  # what was set has to show first
                raise MoveError(f"the cluster does not show what is left of the lists of {', '.join(claims.topics)}")
            if lists:
                self._admin.sleep(_RETRY_SECONDS)
        if refused:
            raise MoveError(f"Removing the throttle failed: {_in_words(refused)}")
        self._put_back(claims)

    def _try_to_undo(self) -> bool:
        try:
            self.undo()
        except (ControlError, MoveError):
            return False
        return True

    def end(self, plan: Mapping[Partition, Brokers], still_moving: Collection[Partition] = ()) -> PutBack:
        """Put back what stood before the move, and read it back. Returns what was changed, and what has to stay.

        Partitions in `still_moving` stay throttled. Where nothing was written down, what was set is told by what stands
        for the partitions of `plan`.
        """
        written = self._file.read(self._cluster_id)
        if written is not None:
            return PutBack() if written.ended else self._put_back(written.claims, still_moving)
        standing = self._standing(self._admin.brokers(), {partition.topic for partition in plan}, self._all_topics())
        claims = claims_by_the_plan(plan, self._file.read_rollback(), standing)
        return replace(self._put_back(claims, still_moving), by_plan=True) if claims else PutBack()

    def _put_back(self, claims: Claims, still_moving: Collection[Partition] = ()) -> PutBack:
        done: list[ConfigChange] = []
        found = PutBack()
        waited = 0.0

        def to_do() -> tuple[ConfigChange, ...]:
            nonlocal found, waited
            # Of all topics where rates were set, for somebody else may use them.
            standing = self._standing(claims.brokers, claims.topics, self._all_topics() if claims.rates else ())
            under_way = self._admin.reassignments()
            while (
                waited < GRACE_SECONDS
                and not still_moving
                and are_used_by_others(claims, standing)
                and not needed_by_others(claims, standing, under_way)
            ):
                self._admin.sleep(POLL_SECONDS)
                waited += POLL_SECONDS
                under_way = self._admin.reassignments()
            found = put_back(claims, standing, still_moving, under_way)
            changes = found.changes or (() if still_moving else emptied_lists(claims, standing))
            done.extend(change for change in changes if change not in done)
            return changes

        self._until_nothing_to_do("Removing the throttle", to_do)
        if not still_moving and not found.left:
            self._file.write(Journal(self._cluster_id, ended=True))
        return PutBack(tuple(done), found.left)

    def _all_topics(self) -> set[str]:
        return {partition.topic for partition in self._admin.partitions()}

    def _standing(self, brokers: Iterable[int], topics: Iterable[str], others: Iterable[str] = ()) -> Standing:
        """Read what stands. Left out are brokers that are down, and `others` that the user may not describe."""
        rates: dict[int, Mapping[str, str]] = {}
        for broker in sorted(set(brokers) & set(self._admin.brokers())):
            try:
                rates |= self._admin.own_throttles([broker])[0]
            except ControlError:
                # A broker that has gone down meanwhile gives no answer, which holds up nothing. One that is up has to.
                if broker in self._admin.brokers():
                    raise
        wanted = sorted(set(topics))
        return Standing(rates, self._admin.own_throttles((), wanted, sorted(set(others).difference(wanted)))[1])

    def _until_nothing_to_do(self, action: str, to_do: Callable[[], tuple[ConfigChange, ...]]) -> None:
        """Do what there is to do until a reading shows that nothing is left. An error in a reading is no success."""
        refused: dict[str, str] = {}
        begun = since = self._admin.clock()
        before: tuple[ConfigChange, ...] = ()
        while changes := to_do():
            if changes != before and self._admin.clock() - begun < MOST_SEEN_SECONDS:
                since = self._admin.clock()
            elif self._admin.clock() - since >= SEEN_SECONDS:
                raise MoveError(f"{action} failed: {_in_words(refused) or 'the cluster does not show what was set'}")
            else:
                self._admin.sleep(_RETRY_SECONDS)
            refused, before = self._order(changes), changes

    def _order(self, changes: Iterable[ConfigChange]) -> dict[str, str]:
        """Have the cluster make changes. Returns what it refuses, and why.

        Topics and brokers come in the order that the changes have: it matters where this is interrupted.
        """
        refused: dict[str, str] = {}
        for _, group in groupby(changes, key=lambda change: change.kind):
            refused |= self._admin.change_configs(group)
        return refused


def _in_words(refused: Mapping[str, str]) -> str:
    return "; ".join(f"{resource}: {reason}" for resource, reason in refused.items())
