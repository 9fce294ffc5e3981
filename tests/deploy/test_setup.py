# SPDX-License-Identifier: Apache-2.0
"""`make setup` where Python is none that will do: one sentence that says what to do, and nothing is left."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.installed import PROJECT

# A Python that is asked for its version alone, for venv, or to make a .venv, each time by other words.
PYTHON = """#!/bin/sh
case "$*" in
  --version) echo Python {version} ;;
  *version_info*) {is_new} ;;
  *ensurepip*) {has_venv} ;;
  *) exit 3 ;;
esac
"""
TOO_OLD = "weir needs Python 3.11 or newer and '{}' is not: install it, or name it: make PYTHON=..."
NO_VENV = (
    "'{}' makes no virtual environments: install its venv (Debian: apt-get install python3-venv), or name another: "
    "make PYTHON=..."
)


def python(folder: Path, *, version: str = "3.11.2", is_new: bool = True, has_venv: bool = True) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    text = PYTHON.format(version=version, is_new=str(is_new).lower(), has_venv=str(has_venv).lower())
    folder.write_text(text)
    folder.chmod(0o755)


def make(folder: Path, *words: str) -> list[str]:
    """Run `make setup`, which must fail, where only the programs of `bin` are; return what it says by itself."""
    program = shutil.which("make")
    assert program is not None
    for name in ("Makefile", "pyproject.toml", "requirements-dev.lock"):
        shutil.copy(PROJECT / name, folder)
    done = subprocess.run(
        [program, *words, "setup"],
        cwd=folder,
        env={"PATH": str(folder / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    return [line for line in done.stderr.splitlines() if not line.startswith("make")]


@pytest.mark.parametrize("name", ["python3.11", "python3"])
def test_a_python_that_is_too_old_is_told_in_a_sentence(tmp_path: Path, name: str) -> None:
    python(tmp_path / "bin" / name, is_new=False)
    assert make(tmp_path) == [TOO_OLD.format(tmp_path / "bin" / name)]
    assert not (tmp_path / ".venv").exists()


def test_a_machine_without_python_is_told_in_a_sentence(tmp_path: Path) -> None:
    assert make(tmp_path) == [TOO_OLD.format("python3")]
    assert make(tmp_path, "PYTHON=python3.13") == [TOO_OLD.format("python3.13")]


def test_a_python_without_venv_is_told_in_a_sentence(tmp_path: Path) -> None:
    python(tmp_path / "bin" / "python3", has_venv=False)
    assert make(tmp_path) == [NO_VENV.format(tmp_path / "bin" / "python3")]
    assert not (tmp_path / ".venv").exists()


def test_a_venv_of_another_python_is_told_in_a_sentence(tmp_path: Path) -> None:
    python(tmp_path / ".venv" / "bin" / "python")
    python(tmp_path / "bin" / "python3.13", version="3.13.9")
    assert make(tmp_path, "PYTHON=python3.13") == [
        ".venv is of Python 3.11.2 and 'python3.13' is another: run make clean first"
    ]
