# SPDX-License-Identifier: Apache-2.0
"""That no file is two modules: a room's folder is also at the top of the checkout, where Python may look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).resolve().parents[1]


def files_of_two_modules(modules: Mapping[str, ModuleType]) -> list[list[str]]:
    """Return the names of modules that are the same file of the project, file by file. `modules`: as `sys.modules`."""
    names = defaultdict(list)
    for name, module in list(modules.items()):
        if name != "__main__" and (file := getattr(module, "__file__", None)):
            names[Path(file).resolve()].append(name)
    return [sorted(found) for file, found in names.items() if len(found) > 1 and _is_ours(file)]


def _is_ours(file: Path) -> bool:
    """Whether a file is the project's; .venv/ holds those of others."""
    return file.is_relative_to(PROJECT) and not file.relative_to(PROJECT).parts[0].startswith(".")
