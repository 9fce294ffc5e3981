# SPDX-License-Identifier: Apache-2.0
"""The commands of `weir`, their options and their help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

import typer

from weir.cli import capture, demo, doctor, limits, move, plan, report, run, status, throttle, webhook
from weir.cli.errors import DONE, INTERRUPTED, WRONG_USAGE, CommandError
from weir.cli.examples import add_examples
from weir.cli.options import with_options
from weir.cli.version import __version__

# the base class of typer's usage errors, by a way that exists in every version of typer
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="weir",
    help="A sidecar for every Kafka broker that bounds replication traffic on the wire.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("check")(run.check)
app.command("doctor")(doctor.doctor)
app.command("status")(with_options(status.status))
app.command("plan")(with_options(plan.plan))
app.command("webhook")(webhook.webhook)
app.add_typer(throttle.app, name="throttle")
app.add_typer(limits.app, name="limits")
app.add_typer(move.app, name="move")
app.add_typer(capture.app, name="capture")
app.add_typer(report.app, name="report")
app.command("demo", hidden=not demo.is_offered())(demo.demo)
add_examples(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weir {__version__}")
        raise typer.Exit


@app.callback()
def _weir(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def invoke(words: Sequence[str]) -> int:
    """Run the command that `words` name, or show the help without any; return its exit status.

    CommandError says why it cannot be done.
    """
    try:
        result = app(args=words or ["--help"], prog_name="weir", standalone_mode=False)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "weir"
        raise CommandError(f"{_sentence(error.format_message())} See: {command} --help", WRONG_USAGE) from error
    except typer.Abort:
        return INTERRUPTED
    return result if isinstance(result, int) else DONE


def _sentence(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if one_line.endswith((".", "?")) else f"{one_line}."
