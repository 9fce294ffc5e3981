# SPDX-License-Identifier: Apache-2.0
"""`weir limits show|set|clear`: the limits of clients on running sidecars, in force at once and without a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import typer

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.fleet import Where, ask_sidecars
from weir.cli.lease import LeaseOptions, source_in_words
from weir.cli.options import option, parse_given, with_options
from weir.cli.output import print_table
from weir.cli.rates import parse_rate
from weir.cli.sidecars import JsonOption, Reply, Row, as_json, finish, rows_of
from weir.limits.built_in import ByteRateLimiter, RecordBatchRateLimiter, RecordRateLimiter

_PATH: Final = "/v1/limits"
_NONE: Final = "none"
_COLUMNS: Final = ("sidecar", "client id", "per", "limits", "from")

_CLIENT_ID: Final = typer.Option("--client-id", metavar="ID", help="A client id, or a pattern with *, ? and [...].")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """The limits of a client id or of a pattern: of records, of batches, and of bytes, each a second."""

    per: Annotated[
        Literal["task", "connector"],
        typer.Option("--per", help="Whether each client id has the limit, or all tasks of a connector share it."),
    ] = "task"
    records: str | None = option("--records", "NUMBER", "Records/s; 'none': they are only counted.")
    batches: str | None = option("--batches", "NUMBER", "Fetch answers with records, or Produce requests, a second.")
    bytes_: str | None = option("--bytes", "RATE", "Bytes/s of records, as in 500k or 5MB.")

    def as_plain(self) -> dict[str, Any]:
        """Return the limits by the names of `[[limits.client]]`; None is no limit. CommandError for wrong ones."""
        given = {
            RecordRateLimiter.option.name: _read("--records", self.records, _number),
            RecordBatchRateLimiter.option.name: _read("--batches", self.batches, _number),
            ByteRateLimiter.option.name: _read("--bytes", self.bytes_, parse_rate),
        }
        return {name: None if value == _NONE else value for name, value in given.items() if value is not None}


def show(where: Where, json_wanted: JsonOption = False) -> int:
    """Show the limits of clients in force, and where each came from."""
    return _print(ask_sidecars(where, "GET", _PATH), json_wanted)


def set_limits(
    client_id: Annotated[str, _CLIENT_ID],
    lease: LeaseOptions,
    where: Where,
    limits: LimitOptions,
    json_wanted: JsonOption = False,
) -> int:
    """Limit clients, or change their limit; what is not named stays as it is.

    It lasts until a sidecar restarts or loads its file again, or for as long as --for says.
    """
    change = limits.as_plain()
    if not change:
        raise CommandError(
            "nothing to set: give --records ('none' counts them, no more), --batches or --bytes.", WRONG_USAGE
        )
    body = {"client": [{"client_id": client_id, "per": limits.per, **change}], **lease.as_plain()}
    return _changed(where, "PATCH", _PATH, json_wanted, body)


def clear(
    where: Where,
    client_id: Annotated[str | None, _CLIENT_ID] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Limit no client, whatever the file says, until a restart or reload.")
    ] = False,
    json_wanted: JsonOption = False,
) -> int:
    """Remove what was set with `weir limits set`, for all clients or for one id. The file's limits hold again."""
    if everything and client_id is not None:
        raise CommandError("--all cannot be given with --client-id.", WRONG_USAGE)
    query = {"source": "http"} if client_id is None else {"source": "http", "client_id": client_id}
    return _changed(where, "DELETE", _PATH if everything else f"{_PATH}?{urlencode(query)}", json_wanted)


def _changed(where: Where, method: str, path: str, json_wanted: bool, body: object = None) -> int:
    """Change the limits, and show what is in force then; where a sidecar failed, its error."""
    replies = ask_sidecars(where, method, path, body)
    shown = {reply.admin: reply for reply in ask_sidecars(where, "GET", _PATH)}
    return _print([shown.get(one.admin, one) if one.error is None else one for one in replies], json_wanted)


def _read(option: str, text: str | None, read: Callable[[str], float]) -> float | str | None:
    return text if text is None or text == _NONE else parse_given(option, read, text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number: give it as in 1000, or 'none'") from None


def _print(replies: Sequence[Reply], json_wanted: bool) -> int:
    if json_wanted:
        print(as_json(replies, "limits"))
        return finish(replies)
    rows, replies = rows_of(replies, _rows)
    if rows:
        print_table(_COLUMNS, rows)
    elif all(reply.error is None for reply in replies):
        print("No client is limited. To count records alone: weir limits set --client-id ID --records none")
    return finish(replies)


def _rows(reply: Reply) -> Iterator[Row]:
    sources = {(one["client_id"], one["per"]): one for one in reply.value.get("sources", ())}
    for entry in reply.value["client"]:
        settings = dict(entry)
        client_id, per = settings.pop("client_id"), settings.pop("per", "task")
        source = sources.get((client_id, per), {})
        limits = ", ".join(f"{name} {_shown(value)}" for name, value in settings.items())
        yield str(reply.admin), client_id, per, limits or _NONE, source_in_words(source.get("source", "file"), source)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or _NONE
    return f"{value:,g}" if isinstance(value, float) else str(value)


app = typer.Typer(help="Show or change the limits of clients on running sidecars.")
app.command("show")(with_options(show))
app.command("set")(with_options(set_limits))
app.command("clear")(with_options(clear))
