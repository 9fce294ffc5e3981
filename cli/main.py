# SPDX-License-Identifier: Apache-2.0
"""The command `weir`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from weir.cli.errors import FAILED, INTERRUPTED, CommandError
from weir.cli.output import OutputError, output_errors, printable

_STDOUT = 1  # the descriptor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `weir` with `arguments` (None: the process's own). Returns the exit status.

    0: done; 1: it failed; 2: wrong usage or configuration.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with output_errors():
            status = _run(words)
            if sys.stdout is not None:  # None where the caller has closed it
                sys.stdout.flush()
    except CommandError as error:
        _say(error.sentence)
        return error.status
    except OutputError as error:
        _say(f"the output cannot be written: {error}.")
        _forget_output()
        return FAILED
    except OSError as error:  # errors that commands expect are CommandErrors
        _say(f"{_what_failed(error, words)}: {error.strerror or error}.")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _say(sentence: str) -> None:
    if sys.stderr is None:  # None where the caller has closed it
        return
    with contextlib.suppress(OSError):  # if this fails, only the exit status tells
        print(f"weir: {printable(sentence)}", file=sys.stderr)


def _what_failed(error: OSError, words: Sequence[str]) -> str:
    """Name the file that an error is about, or else the command."""
    if error.filename is not None:
        return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    command = " ".join(takewhile(lambda word: not word.startswith("-"), words))
    return f"{command or 'it'} failed"


def _run(words: Sequence[str]) -> int:
    file = _file_to_run(words)
    if file is not None:
        from weir.cli import configured

        return configured.run(file, waits="--wait" in words)
    from weir.cli.app import invoke

    return invoke(words)


def _forget_output() -> None:
    """Keep the interpreter from writing at its end what could not be written before."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), _STDOUT)


def _file_to_run(words: Sequence[str]) -> Path | None:
    """Return the file of `weir run --config FILE`, None for any other form.

    This form, with which every sidecar is started, is understood without the command line's libraries: these would take
    11 MB for as long as the sidecar lives. Other forms of the command do the same with them.
    """
    match [word for word in words if word != "--wait"]:
        case ["run", "--config", file] if file:
            return Path(file)
        case ["run", word] if word.startswith("--config=") and word != "--config=":
            return Path(word.removeprefix("--config="))
    return None


if __name__ == "__main__":
    sys.exit(main())
