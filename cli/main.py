"""The command `weir`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from cli import demo, run, status, throttle
from cli.errors import FAILED, WRONG_USAGE, CommandError
from cli.version import __version__

# The class of typer's usage errors, by way of one that every version of typer exports.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="weir",
    help="A sidecar for every Kafka broker that bounds replication traffic on the wire.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("check")(run.check)
app.command("status")(status.status)
app.add_typer(throttle.app, name="throttle")
app.command("demo", context_settings=demo.PASS_ARGUMENTS_ON)(demo.demo)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `weir` with `arguments` (the process's own when None) and return the exit status.

    0: done; 1: it failed; 2: wrong usage or configuration.
    """
    try:
        result = app(args=arguments, prog_name="weir", standalone_mode=False)
    except CommandError as error:
        return _fail(error.sentence, error.status)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "weir"
        return _fail(f"{_sentence(error.format_message())} See: {command} --help", WRONG_USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return result if isinstance(result, int) else 0


def _fail(sentence: str, status: int = FAILED) -> int:
    print(f"weir: {sentence}", file=sys.stderr)
    return status


def _sentence(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if one_line.endswith((".", "?")) else f"{one_line}."


if __name__ == "__main__":
    sys.exit(main())
