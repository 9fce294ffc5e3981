# SPDX-License-Identifier: Apache-2.0
"""Environments that weir and others are installed into by pip, as people do it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SECONDS = 600  # a machine may be busy


class Environment:
    """A new virtual environment in `folder`.

    It finds the packages that the tests have, but not the weir of the checkout, unless it `is_alone`.
    """

    def __init__(self, folder: Path, *, is_alone: bool = False) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=SECONDS)
        self.bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        if not is_alone:
            # what a .pth file there says, as that of the checkout's weir, is not read for a folder that one names
            (self.packages / "of-the-tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def install(self, *words: str | Path) -> None:
        """Install what stands on this machine, and fetch nothing."""
        self.pip("install", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", *words)

    def pip(self, command: str, *words: str | Path) -> None:
        """Run pip, which must succeed, on this environment."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, command, "--quiet", *words], env=self.variables(), capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stderr

    def run(self, *command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs to its end."""
        program, *words = command
        return subprocess.run(
            [self.bin / program, *words],
            cwd=cwd,
            env=self.variables() | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    @staticmethod
    def variables() -> dict[str, str]:
        """The variables of this process but those that lead Python to the checkout."""
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
