# SPDX-License-Identifier: Apache-2.0
"""Runs unit tests on the newest Python of this machine, beside the one that `make setup` uses: `make unit-newest`.

    python -m weir.lab.newest_python --packages | [argument of pytest ...]

The Pythons looked at are those on PATH, and pyenv's. The environment is `.venv-newest`, with the packages of
`requirements-dev.lock` but PySpark, which is large and which no such test needs. `--packages` installs these and ends.
It imports nothing else, so that `make test` can run it while the packages of `.venv` are still on their way.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

NEWEST: Final = (3, 14)
"""The newest that weir is made for: a newer one may have no wheels of the packages yet."""

_LEFT_OUT: Final = ("py4j", "pyspark")
_VERSION: Final = "import sys; v = sys.version_info; print(*v[:3]) if v.releaselevel == 'final' else None"
_PLACES: Final = ("/usr/local/bin", "/usr/bin")

Version = tuple[int, ...]


def main() -> int:
    """Run the tests, and return pytest's status; 0 where there is no newer Python, or only packages are wanted."""
    own = sys.version_info[:2]
    found = newest(pythons(os.environ), own)
    if found is None:
        print(f"No Python here is newer than {own[0]}.{own[1]}, up to {NEWEST[0]}.{NEWEST[1]}: nothing more to test.")
        return 0
    version, python = found
    project = Path(__file__).resolve().parents[1]
    pip = with_packages(project, python, version)
    if sys.argv[1:] == ["--packages"]:
        return 0
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", project], check=True)
    print(f"The tests run again on Python {'.'.join(map(str, version))}.", flush=True)
    return subprocess.run([pip[0], "-m", "pytest", *sys.argv[1:]], cwd=project).returncode


def pythons(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that may be a Python 3: a name such as python3.13 on PATH, and those of pyenv."""
    places = [*environment.get("PATH", "").split(os.pathsep), *_PLACES]
    for place in dict.fromkeys(filter(None, places)):
        yield from sorted(Path(place).glob("python3.[0-9]*"))
    root = Path(environment.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob("versions/3.*/bin/python"))


def newest(files: Iterable[Path], own: Version) -> tuple[Version, Path] | None:
    """Return the newest of those that are newer than `own` (major, minor), up to NEWEST; None: there is none."""
    found = {}
    for file in files:
        if (file.name == "python" or re.fullmatch(r"python3\.\d+", file.name)) and file.resolve() not in found:
            found[file.resolve()] = (_version(file), file)
    fitting = [(version, file) for version, file in found.values() if own < version[:2] <= NEWEST]
    return max(fitting, default=None)


def without(lock: str, packages: Iterable[str]) -> str:
    """Return the text of a lock file without some packages: each is a line, and the indented ones after it."""
    names = "|".join(map(re.escape, packages))
    return re.sub(rf"^(?:{names})==.*\n(?:[ \t].*\n)*", "", lock, flags=re.MULTILINE)


def with_packages(project: Path, python: Path, version: Version) -> list[str]:
    """Make the environment where it is not there for this version and lock file. Returns `pip install` of it."""
    environment = project / ".venv-newest"
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lock = (project / "requirements-dev.lock").read_text()
    mark = f"{version} {hashlib.sha256(lock.encode()).hexdigest()}\n"
    made = environment / ".installed"
    if made.is_file() and made.read_text() == mark:
        return pip
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([python, "-m", "venv", environment], check=True)
    used = environment / "requirements.lock"
    used.write_text(without(lock, _LEFT_OUT))
    only = ["--no-compile", "--require-hashes", "--only-binary", ":all:"]
    subprocess.run([*pip, *only, "-r", used], check=True)
    made.write_text(mark)
    return pip


def _version(python: Path) -> Version:
    """Return the version of a Python; an empty one where it does not run, or is no release."""
    try:
        told = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(int(part) for part in told.stdout.split())


if __name__ == "__main__":
    sys.exit(main())
