# SPDX-License-Identifier: Apache-2.0
"""Ends a lab's processes when the program that started them is gone, however it went (SIGKILL too).

Runs as a process of its own and knows only what it reads from its standard input, one order a line: `group <id>` and
`ended <id>` for a process group, `folder <path>` and `kept <path>` for a folder. When that input ends, it kills the
groups and removes the folders that are still noted. It imports nothing of the project, so that it is up at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Read orders until the input ends, then clean up."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # what ends the program must not end the one that cleans up after it
    noted: dict[str, set[str]] = {"group": set(), "folder": set()}
    for line in sys.stdin:
        order, _, argument = line.rstrip("\n").partition(" ")
        if order in noted:
            noted[order].add(argument)
        else:
            noted["group" if order == "ended" else "folder"].discard(argument)
    for group in noted["group"]:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)
    for folder in noted["folder"]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
