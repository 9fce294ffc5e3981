# SPDX-License-Identifier: Apache-2.0
"""Which Python the unit tests run on again."""

from __future__ import annotations

from pathlib import Path

from weir.lab.newest_python import newest, pythons, without

PROJECT = Path(__file__).parents[2]


def python(folder: Path, name: str, version: str) -> Path:
    """A file that says it is a Python of this version."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho {version}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_newest_is_a_newer_known_python_of_path_or_pyenv(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path / "bin"), "PYENV_ROOT": str(tmp_path)}
    python(tmp_path / "bin", "python3.12", "3 12 9")
    python(tmp_path / "bin", "python3.13-config", "3 13 99")
    python(tmp_path / "bin", "python3.14t", "3 14 99")
    python(tmp_path / "bin", "python3.14", "")  # a shim that leads nowhere, or no release
    python(tmp_path / "versions" / "3.15.0" / "bin", "python", "3 15 0")
    own = [file for file in pythons(environment) if tmp_path in file.parents]
    assert newest(own, (3, 11)) == ((3, 12, 9), tmp_path / "bin" / "python3.12")
    kept = python(tmp_path / "versions" / "3.13.0" / "bin", "python", "3 13 0")
    own = [file for file in pythons(environment) if tmp_path in file.parents]
    assert newest(own, (3, 11)) == ((3, 13, 0), kept)
    assert newest(own, (3, 13)) is None


def test_lock_without_pyspark_has_all_else() -> None:
    lock = (PROJECT / "requirements-dev.lock").read_text()
    assert "\npyspark==" in lock
    left = without(lock, ["py4j", "pyspark"])
    assert {line for line in lock.splitlines() if "==" in line} - {
        line for line in left.splitlines() if "==" in line
    } == {line for line in lock.splitlines() if line.startswith(("py4j==", "pyspark=="))}
    gone = lock.count("--hash") - left.count("--hash")
    assert 0 < gone < 10
