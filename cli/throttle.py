# SPDX-License-Identifier: Apache-2.0
"""`weir throttle show|set|clear`: the throttle of running sidecars, in force at once and without a restart."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.fleet import Where, ask_sidecars, cluster_of, shown, sidecars
from weir.cli.fleet_status import silent
from weir.cli.lease import LeaseOptions, source_in_words
from weir.cli.many import FEW, in_ranges
from weir.cli.options import option, parse_given, with_options
from weir.cli.output import WIDTH, print_table, printable
from weir.cli.rates import parse_rate
from weir.cli.sidecars import (
    JsonOption,
    Reply,
    Row,
    as_json,
    ask_all,
    finish,
    rows_of,
    with_outcomes,
)
from weir.cli.stale import clear_stale
from weir.cli.troubles import LAYER_WORDS
from weir.planning.units import show_rate
from weir.quota.settings import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    MODE,
    STANDING_RATES,
    UNDER_MIN_ISR,
)

if TYPE_CHECKING:
    from weir.control.cluster_admin import ThrottleSetting

_NONE = "none"
_PATH = "/v1/throttle"
_MOST_NAMED = 3
_LIST_SHOWN: Final = 30
"""Characters after which a list of entries is cut at the next comma, where many sidecars are shown."""
_SETTING: Final = TextWrapper(
    WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
)

_RATE_HELP = "Bytes/s, as in 5000000, 500k, 5MB or 5MiB; 'none' for no quota."
_REPLICAS_HELP = "'*', or partition:broker pairs as in '0:1,1:2'; 'none' for no replica."
TopicOption = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; may be given several times.")
]

OtherOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Another key of the table throttle, as in mode=observe; repeatable."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleOptions:
    """The rates of both sides, and the replicas that are throttled, listed by topic."""

    leader_rate: str | None = option("--leader-rate", "RATE", _RATE_HELP)
    follower_rate: str | None = option("--follower-rate", "RATE", _RATE_HELP)
    topic: TopicOption = None
    leader_replicas: str | None = option("--leader-replicas", "LIST", _REPLICAS_HELP)
    follower_replicas: str | None = option("--follower-replicas", "LIST", _REPLICAS_HELP)

    def rates(self) -> dict[str, int | None]:
        """Return the rates (bytes/s) by Kafka's names; None is no quota. CommandError for wrong ones."""
        given = (
            ("--leader-rate", LEADER_RATE, self.leader_rate),
            ("--follower-rate", FOLLOWER_RATE, self.follower_rate),
        )
        return {setting: _rate(name, text) for name, setting, text in given if text is not None}

    def lists(self) -> dict[str, Any]:
        """Return `topics` with each topic's lists by Kafka's names, or nothing; CommandError for wrong ones."""
        given = (
            ("--leader-replicas", LEADER_REPLICAS, self.leader_replicas),
            ("--follower-replicas", FOLLOWER_REPLICAS, self.follower_replicas),
        )
        replicas = {setting: _replicas(name, text) for name, setting, text in given if text is not None}
        if bool(self.topic) != bool(replicas):
            missing = "--leader-replicas or --follower-replicas" if self.topic else "--topic"
            raise CommandError(f"{missing} is missing: throttled replicas are listed by topic.", WRONG_USAGE)
        return {"topics": dict.fromkeys(self.topic, replicas)} if self.topic else {}


def show(where: Where, json_wanted: JsonOption = False) -> int:
    """Show the throttle in force, and where each part came from; with a cluster Kafka's own settings too."""
    if where.bootstrap_server is None:
        return _print(ask_sidecars(where, "GET", _PATH), json_wanted)
    from weir.control.fleet import cluster_state

    with cluster_of(where.bootstrap_server, where.command_config) as cluster:
        replies = ask_all(list(sidecars(where, cluster)), "GET", _PATH)
        state = cluster_state(cluster)
    for sentence in silent(state):
        print(f"weir: {sentence}", file=sys.stderr)
    return _print(replies, json_wanted, state.throttles)


def set_throttle(
    where: Where,
    lease: LeaseOptions,
    throttle: ThrottleOptions,
    other: OtherOption = None,
    json_wanted: JsonOption = False,
) -> int:
    """Change what is named, and leave the rest as it is. Without --bootstrap-server that is one sidecar's throttle.

    It lasts until that sidecar restarts or loads its file again: put into the file what is to stay.
    """
    change = {**throttle.rates(), **dict(_named_setting(text) for text in other or ()), **throttle.lists()}
    if not change:
        raise CommandError("nothing to set: give a rate, or a topic with its replicas.", WRONG_USAGE)
    return _print(ask_sidecars(where, "PATCH", _PATH, {**change, **lease.as_plain()}), json_wanted)


def clear(
    where: Where,
    topic: TopicOption = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Remove what moves have left in Kafka's own configurations, and only that.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Throttle nothing, whatever the file and Kafka say, until a restart or reload."),
    ] = False,
    json_wanted: JsonOption = False,
) -> int:
    """Remove what was set with `weir throttle set`, or the topics named only.

    The file's throttle, and Kafka's own where a sidecar follows it, are in force again.
    """
    if everything and (topic or stale):
        raise CommandError(f"--all cannot be given with {'--topic' if topic else '--stale'}.", WRONG_USAGE)
    if stale:
        if topic or where.bootstrap_server is None:
            wrong = "--topic cannot be given with --stale" if topic else "--bootstrap-server is missing"
            raise CommandError(
                f"{wrong}: --stale clears all that is stale in one cluster's own configurations.", WRONG_USAGE
            )
        return clear_stale(where, where.bootstrap_server, json_wanted)
    if topic:
        replies = ask_sidecars(where, "PATCH", _PATH, {"topics": dict.fromkeys(topic)})
    else:
        replies = ask_sidecars(where, "DELETE", _PATH if everything else f"{_PATH}?source=http")
    return _print(replies, json_wanted)


def _named_setting(text: str) -> tuple[str, int | str | None]:
    """Read `NAME=VALUE`, as in `leader.recovery.throttled.rate=50MB` and `mode=observe`."""
    name, is_given, value = text.partition("=")
    if name not in (*STANDING_RATES, UNDER_MIN_ISR, MODE) or not is_given:
        known = ", ".join((*STANDING_RATES, UNDER_MIN_ISR, MODE))
        raise CommandError(f"--set {text}: give it as NAME=VALUE, with one of {known}.", WRONG_USAGE)
    if name in STANDING_RATES:
        return name, _rate(f"--set {name}", value)
    return name, None if value == _NONE else value


def _rate(option: str, text: str) -> int | None:
    return None if text == _NONE else parse_given(option, parse_rate, text)


def _replicas(option: str, text: str) -> str | None:
    """Check a list before any request: else some sidecars could be changed before another one refuses it."""
    from weir.quota.throttled_replicas import ThrottledReplicas

    return None if text == _NONE else str(parse_given(option, ThrottledReplicas.parse, text)) or None


def _print(replies: Sequence[Reply], json_wanted: bool, settings: Sequence[ThrottleSetting] | None = None) -> int:
    """Print what sidecars have in force, and Kafka's own settings where they were asked for."""
    if json_wanted and settings is not None:
        kafka = [setting._asdict() for setting in settings]
        print(json.dumps({"sidecars": with_outcomes(replies, "throttle"), "kafka": kafka}, indent=2))
        return finish(replies)
    if json_wanted:
        print(as_json(replies, "throttle"))
        return finish(replies)
    rows, replies = rows_of(replies, _rows)
    notes, replies = rows_of(replies, _notes)
    if len(replies) > FEW:
        _print_folded([*_alike(rows, len(replies)), *_kafka_rows(settings or ())])
    elif rows := [*rows, *(("Kafka", shown(setting), setting.value, setting.source) for setting in settings or ())]:
        print_table(("sidecar", "setting", "value", "from"), rows)
    if len(replies) > FEW:
        notes = [
            (f"{sidecars}: {said}",)
            for sidecars, said in _alike([note.split(": ", 1) for (note,) in notes], len(replies))
        ]
    for (note,) in notes:
        print(f"note: {note}", file=sys.stderr)
    return finish(replies)


def _alike(rows: Sequence[Row], count: int) -> list[Row]:
    """Return a row for each setting with one value: it names the sidecars that have it, or says that all `count` do."""
    found: dict[tuple[str, ...], list[str]] = {}
    for sidecar, *setting in rows:
        found.setdefault(tuple(setting), []).append(sidecar)
    return [(_sidecars(some, count), *setting) for setting, some in found.items()]


def _print_folded(rows: Sequence[Row]) -> None:
    """Print settings below those who have them, on lines of WIDTH characters. A long list has its first entries."""
    found: dict[str, list[str]] = {}
    for whose, setting, value, origin in rows:
        more = value.count(",", _LIST_SHOWN)
        value = value if not more else f"{value[: value.index(',', _LIST_SHOWN)]} and {more} more"
        found.setdefault(whose, []).append(f"{setting} = {value}{origin and f', from {origin}'}")
    for whose, lines in found.items():
        print(whose + ":")
        for line in lines:
            print(_SETTING.fill(printable(line)))


def _kafka_rows(settings: Sequence[ThrottleSetting]) -> Iterator[Row]:
    """Yield Kafka's own settings; brokers that have the same one are named together."""
    brokers: dict[Row, list[int]] = {}
    for one in settings:
        if one.kind == "broker" and one.name:
            brokers.setdefault((one.setting, one.value, one.source), []).append(int(one.name))
        else:
            yield "Kafka", shown(one), one.value, one.source
    for (setting, *rest), some in brokers.items():
        yield f"Kafka, broker{'s' if len(some) > 1 else ''} {in_ranges(some)}", setting, *rest


def _sidecars(some: Sequence[str], count: int) -> str:
    if len(some) == count:
        return f"all {count}"
    more = f" and {len(some) - _MOST_NAMED} more" if len(some) > _MOST_NAMED else ""
    return ", ".join(some[:_MOST_NAMED]) + more


def _notes(reply: Reply) -> Iterator[Row]:
    """Yield notes on what is easily forgotten: a removal that hides the rest, and rates that throttle nothing."""
    layers = reply.value.get("layers", ())
    if any(part["part"] == "*" and part.get("removed") for layer in layers for part in layer["parts"]):
        hidden = " and ".join([LAYER_WORDS[one["source"]] for one in layers if one["source"] in LAYER_WORDS])
        yield (
            f"{reply.admin}: all that was set otherwise was removed until a restart or reload"
            f"{', and that hides ' + hidden if hidden else ''}. `weir throttle clear` ends this.",
        )
    listed = {name for replicas in reply.value["topics"].values() for name in replicas}
    for rate, replicas in ((LEADER_RATE, LEADER_REPLICAS), (FOLLOWER_RATE, FOLLOWER_REPLICAS)):
        if reply.value.get(rate) is not None and replicas not in listed:
            yield (f"{reply.admin}: {rate} is set, but no topic lists {replicas}: nothing is throttled by it.",)


def _rows(reply: Reply) -> Iterator[Row]:
    table: dict[str, Any] = reply.value
    origins = _origins(table)
    sidecar = str(reply.admin)
    for name in (LEADER_RATE, FOLLOWER_RATE):
        rate = table.get(name)
        value = _NONE if rate is None else f"{rate} bytes/s ({show_rate(rate)})"
        yield [sidecar, name, value, origins.get(name, "")]
    for name in (*STANDING_RATES, UNDER_MIN_ISR, MODE):
        setting = table.get(name)
        if setting is not None:
            words = f"{setting} bytes/s ({show_rate(setting)})" if name in STANDING_RATES else str(setting)
            yield [sidecar, name, words, origins.get(name, "")]
    for quota in table.get("quotas", ()):
        yield [sidecar, f"quota {quota['name']}", _quota_words(quota), origins.get(f"quotas.{quota['name']}", "")]
    for topic, replicas in sorted(table["topics"].items()):
        for name, listed in replicas.items():
            yield [sidecar, f"{topic}: {name}", str(listed), origins.get(f"topics.{topic}.{name}", "")]


def _quota_words(quota: dict[str, Any]) -> str:
    """Describe a quota, as in `20000000 bytes/s (20 MB/s) on the leader's side, racks b, c`."""
    scope = [f"{name} {', '.join(map(str, quota[name]))}" for name in ("peers", "racks", "topics") if quota.get(name)]
    observed = ["only observed"] if quota.get("mode") == "observe" else []
    rate = f"{quota['rate']} bytes/s ({show_rate(quota['rate'])})"
    side = f"on the {quota['side']}'s side"
    if quota.get("kept_at") == "leaders":
        side = "for each follower, kept by its leaders"
    return ", ".join([f"{rate} {side}", *scope, *observed])


def _origins(table: dict[str, Any]) -> dict[str, str]:
    """Return where each part comes from, as in `http, 1 h left, ann: adding broker 4`."""
    found: dict[str, str] = dict(table["sources"])
    for layer in table.get("layers", ()):
        for part in layer["parts"]:
            if found.get(part["part"]) == layer["source"]:
                found[part["part"]] = source_in_words(layer["source"], part)
    return found


app = typer.Typer(help="Show or change the throttle of running sidecars.")
app.command("show")(with_options(show))
app.command("set")(with_options(set_throttle))
app.command("clear")(with_options(clear))
