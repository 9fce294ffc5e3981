# SPDX-License-Identifier: Apache-2.0
"""The five answers of a report in words: a sentence each, with its figures and the columns that these are from."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final, Literal

from weir.pipeline.page.texts import counted, show_seconds
from weir.pipeline.page.timeline import show_moment
from weir.pipeline.page.verdict import BINDING, Bound, ClientRates, Impact, OpenMove, Room, Verdict
from weir.planning.units import show_rate, show_size

Tone = Literal["good", "bad", "plain"]

MOST_LISTED: Final = 20
_WIDTH: Final = 80
_NOT_SAMPLED: Final = "Not known: nothing was sampled in this range."


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question. `source` names tables and columns; `details` are lines below the sentence."""

    question: str
    tone: Tone
    sentence: str
    source: str
    details: tuple[str, ...] = ()


def answers(verdict: Verdict, zone: tzinfo) -> list[Answer]:
    """Return the five answers, with times in `zone`."""

    def show(moment: datetime) -> str:
        return show_moment(moment, zone)

    return [_protected(verdict), _which(verdict), _end(verdict, show), _bottleneck(verdict), _raise(verdict)]


def as_text(found: list[Answer]) -> str:
    """Return the answers for a terminal or a mail, in lines of at most 80 columns."""
    return "\n\n".join("\n".join(_lines(answer)) for answer in found)


def _lines(answer: Answer) -> Iterator[str]:
    yield answer.question
    yield from textwrap.wrap(answer.sentence, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    for detail in answer.details:
        yield from textwrap.wrap(detail, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    yield from textwrap.wrap(f"({answer.source})", _WIDTH, initial_indent="  ", subsequent_indent="   ")


def _protected(verdict: Verdict) -> Answer:
    impact = verdict.impact
    question = "Did the throttle protect my clients?"
    source = (
        "replica_lag.start, broker_rates.mean_bytes_per_second, absences.start, limits.records, client_rates.bytes_out"
    )
    if verdict.sampled_until is None:
        return Answer(question, "plain", _NOT_SAMPLED, source)
    if not impact.throttled_size:
        sentence = f"There was nothing to protect them from: no throttled replica got bytes. {_out_of_sync(impact)}"
        return Answer(question, "plain", sentence, source)
    if impact.hurt:
        is_one = impact.hurt == 1
        whose = "its broker" if is_one else "their brokers"
        head = f"Not wholly: {counted(impact.hurt, 'replica')} that {'was' if is_one else 'were'} not moved"
        head += f" {'was' if is_one else 'were'} out of sync while throttled bytes passed on {whose}."
    else:
        head = "Yes: no replica that was not moved was out of sync while throttled bytes passed on its brokers."
    rates = f"Replicas in sync got {show_rate(impact.during)} meanwhile"
    rates += "." if impact.apart is None else f", and {show_rate(impact.apart)} at other times."
    clients = f" {_of_clients(impact)}" if impact.of_clients else ""
    clients += f" {_clients(impact)}" if impact.clients else ""
    details = tuple(f"{replica}: {show_seconds(seconds)}" for replica, seconds in impact.worst_hurt)
    details += tuple(_moved(of) for of in impact.of_clients[1:MOST_LISTED])
    sentence = f"{head} {_out_of_sync(impact)} {rates}{clients}"
    return Answer(question, "bad" if impact.hurt else "good", sentence, source, details)


def _of_clients(impact: Impact) -> str:
    first, *others = impact.of_clients
    if not others or first.lost is None:
        return f"{_moved(first)}."
    count = len(others) + 1
    return f"{_moved(first)}{', the largest fall' if first.lost > 0 else ': no fall'} of {count:,} brokers' clients."


def _moved(of: ClientRates) -> str:
    now = f"Clients of broker {of.broker_id} read {show_rate(of.read)} and wrote {show_rate(of.written)} meanwhile"
    if of.read_before is None or of.written_before is None:
        return now
    return f"{now}, {show_rate(of.read_before)} and {show_rate(of.written_before)} in the hour before"


def _clients(impact: Impact) -> str:
    waited = f"{counted(impact.clients, 'limited client')} waited {show_seconds(impact.waited_seconds)} in all"
    sentence = f"{waited}, and moved {impact.records_during or 0:,.1f} records/s meanwhile"
    return (
        f"{sentence}." if impact.records_apart is None else f"{sentence}, {impact.records_apart:,.1f} at other times."
    )


def _out_of_sync(impact: Impact) -> str:
    counts = (
        (impact.movers, "moved"),
        (impact.away, "on a broker that was away"),
        (impact.others, "at other times" if impact.throttled_size else "for other reasons"),
    )
    told = [f"{count:,} {where}" for count, where in counts if count]
    return f"Out of sync besides: {', '.join(told)}." if told else "No other replica was out of sync."


def _which(verdict: Verdict) -> Answer:
    question = "Which move hurt?"
    source = "moves.start, replica_lag.start, throttle_minutes.seconds_left_out"
    if not verdict.costs:
        sentence = "None: no throttled replica was seen to move." if verdict.sampled_until else _NOT_SAMPLED
        return Answer(question, "good" if verdict.sampled_until else "plain", sentence, source)
    hurt = [cost for cost in verdict.costs if cost.hurt_minutes]
    worst = (hurt or sorted(verdict.costs, key=lambda cost: -cost.bound_seconds))[0]
    held = f"a quota held it back for {show_seconds(worst.bound_seconds)}"
    if not hurt:
        sentence = f"None of {counted(verdict.ends.count, 'move')} hurt other replicas. {worst.replica} waited most:"
        return Answer(question, "good", f"{sentence} {held}.", source)
    sentence = (
        f"{worst.replica}: while it moved, other replicas on one of its brokers were out of sync for"
        f" {_replica_time(worst.hurt_minutes)}; {held}."
    )
    details = tuple(
        f"{cost.replica}: others {_replica_time(cost.hurt_minutes)}, held back {show_seconds(cost.bound_seconds)},"
        f" {show_size(cost.size)}"
        for cost in hurt[1:MOST_LISTED]
    )
    return Answer(question, "bad", sentence, source, details)


def _replica_time(minutes: int) -> str:
    return f"{show_seconds(minutes * 60)} together"


def _end(verdict: Verdict, show: Callable[[datetime], str]) -> Answer:
    ends = verdict.ends
    question = "When will it end?"
    source = "behind_minutes.max_lag_messages, moves.end"
    if verdict.sampled_until is None:
        return Answer(question, "plain", _NOT_SAMPLED, source)
    unseen = ""
    if ends.unseen:
        unseen = (
            f" {counted(ends.unseen, 'move')} {'was' if ends.unseen == 1 else 'were'} open when last seen, and then"
        )
        unseen += " no sample told of it." if ends.unseen == 1 else " no sample told of them."
    if not ends.open:
        last = f" The last one ended {show(ends.last_end)}." if ends.last_end else ""
        return Answer(question, "plain" if ends.unseen else "good", f"No move is open.{last}{unseen}", source)
    is_slow = any(move.end is None for move in ends.open)
    count = counted(len(ends.open), "open move")
    if ends.end is not None:
        until = "no end in sight by the slowest pace" if ends.latest is None else show(ends.latest)
        sentence = f"{show(ends.end)} for {'all of ' if len(ends.open) > 1 else ''}{count}"
        sentence += _range("from ", show(ends.earliest or ends.end), until)
        sentence += f", by the paces up to {show(verdict.sampled_until)}."
    else:
        stuck = sum(move.end is None for move in ends.open)
        sentence = f"Not known: {stuck:,} of {count} {'does' if stuck == 1 else 'do'} not come closer."
    details = tuple(_open_move(move, show) for move in ends.open[:MOST_LISTED])
    if len(ends.open) > MOST_LISTED:
        details += (f"and {len(ends.open) - MOST_LISTED:,} that end before these",)
    return Answer(question, "bad" if is_slow else "plain", sentence + unseen, source, details)


def _open_move(move: OpenMove, show: Callable[[datetime], str]) -> str:
    behind = f"{counted(move.lag_messages, 'message')} behind" if move.lag_messages else "not known how far behind"
    if move.end is None:
        return f"{move.replica}: {behind}, no closer"
    latest = "no end in sight" if move.latest is None else show(move.latest)
    return f"{move.replica}: {show(move.end)}{_range('', show(move.earliest or move.end), latest)}, {behind}"


def _range(begin: str, earliest: str, latest: str) -> str:
    """Return the range of an end in brackets; nothing where all paces lead to the same."""
    return "" if earliest == latest else f" ({begin}{earliest} to {latest})"


def _bottleneck(verdict: Verdict) -> Answer:
    question = "Who is the bottleneck?"
    source = "throttle_minutes.seconds_left_out, .seconds"
    if verdict.sampled_until is None:
        return Answer(question, "plain", _NOT_SAMPLED, source)
    if not verdict.bound:
        return Answer(question, "plain", "Nobody: no throttled replica moved under a quota.", source)
    worst = verdict.bound[0]
    if worst.share < BINDING:
        sentence = f"No quota: {_name(worst)} was bound most, for {worst.share:.0%} of the time in which it moved"
        sentence += " throttled replicas. If moves are slow, look at disks, links and fetch settings."
        return Answer(question, "plain", sentence, source)
    sentence = f"{_name(worst).capitalize()}: its quota bound for {_share(worst)} in which it moved throttled replicas."
    details = tuple(f"{_name(bound)}: {_share(bound)}" for bound in verdict.bound[1:MOST_LISTED] if bound.seconds)
    return Answer(question, "plain", sentence, source, details)


def _name(bound: Bound) -> str:
    return f"broker {bound.broker_id}, {bound.side} side"


def _share(bound: Bound) -> str:
    return f"{bound.share:.0%} ({show_seconds(bound.seconds)}) of the {show_seconds(bound.moving_seconds)}"


def _raise(verdict: Verdict) -> Answer:
    room = verdict.room
    question = "Can I raise the rate tonight?"
    source = "throttle_minutes.seconds_left_out, broker_rates.mean_bytes_per_second"
    if verdict.sampled_until is None:
        return Answer(question, "plain", _NOT_SAMPLED, source)
    if room.rates is None or room.bound is None:
        return Answer(question, "plain", "There is no rate to raise: no throttled replica moved under a quota.", source)
    least, most = room.rates
    rate = show_rate(least) if least == most else f"{show_rate(least)} to {show_rate(most)}"
    lately = f"{room.bound:.0%} of the time"
    is_binding = room.bound >= BINDING
    if room.bound_last_hour is not None:
        lately, is_binding = f"{room.bound_last_hour:.0%} of the last hour", room.bound_last_hour >= BINDING
    if not is_binding:
        sentence = f"It would change nothing: the quota of {rate} bound for {lately}. {_by_time(room)}"
        return Answer(question, "good", sentence, source)
    fits = room.room or 0.0
    seen = f"at most {show_rate(room.most_seen)} passed on a side of a broker so far"
    if fits > most:
        head = f"Yes, from {rate} to {show_rate(fits)}: {seen}, and what is above was never tried."
    else:
        head = f"Only in small steps: {seen}, and {rate} beside the others comes to that already."
    sentence = f"{head} The quota bound for {lately}. {_by_time(room)}"
    return Answer(question, "good" if fits > most else "bad", sentence, source)


def _by_time(room: Room) -> str:
    bound = f"{room.bound or 0:.0%} of all the time"
    if room.bound_by_night is not None:
        bound += f", {room.bound_by_night:.0%} by night (22 to 6)"
    others = f"Other replication took at most {show_rate(room.others or 0)} there"
    nights = (
        "; no night was sampled." if room.others_by_night is None else f", {show_rate(room.others_by_night)} by night."
    )
    return f"It bound for {bound}. {others}{nights}"
