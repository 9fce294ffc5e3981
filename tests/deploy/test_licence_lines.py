# SPDX-License-Identifier: Apache-2.0
"""Each source file says under which licence it is, on its first line or behind `#!`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
LINE: Final = "SPDX-License-Identifier: Apache-2.0"
SUFFIXES: Final = frozenset(
    (".py", ".js", ".css", ".go", ".java", ".yaml", ".yml", ".tpl", ".service", ".timer", ".conf")
)
NAMES: Final = frozenset(("Makefile", "Dockerfile"))


def sources() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_symlink() and is_source(file)]


def is_source(file: Path) -> bool:
    if file.suffix in SUFFIXES or file.name in NAMES:
        return file.stat().st_size > 0
    with file.open("rb") as opened:
        return opened.read(2) == b"#!"


def test_each_source_file_names_its_licence() -> None:
    lacking = []
    for file in sources():
        with file.open(encoding="utf-8") as opened:
            first = opened.readline()
            if first.startswith("#!"):
                first = opened.readline()
        if LINE not in first:
            lacking.append(str(file.relative_to(ROOT)))
    assert lacking == []
