# SPDX-License-Identifier: Apache-2.0
"""Programs that use the lab, and the processes they leave behind."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def python(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start Python with `arguments`, its labs in `folder`; stdin and stdout are pipes. A context manager."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"},
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and str(folder) in (line := (entry / "cmdline").read_bytes().decode()):
                found.append(line)
    return found
