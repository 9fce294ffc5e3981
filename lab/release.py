# SPDX-License-Identifier: Apache-2.0
"""Makes what is released, in `dist/`: `python -m weir.lab.release`, or `make release`.

That is the wheel and the sdist, and for the packages of `requirements.lock`, which the sidecar's image has, a bill of
materials (CycloneDX) and a list of their licences.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_BUILD: Final = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def main() -> int:
    """Make everything anew."""
    project = Path(__file__).resolve().parents[1]
    dist = project / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    wheel = build(project, dist)
    with tempfile.TemporaryDirectory() as folder:
        python = installed(Path(folder) / "env", project / "requirements.lock", wheel)
        subprocess.run([python.parent / "weir", "--version"], check=True)
        bill = bill_of(python, project / "pyproject.toml")
    (dist / "weir.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    (dist / "licences.txt").write_text("".join(f"{line}\n" for line in licences(bill)))
    for made in sorted(dist.iterdir()):
        print(made.relative_to(project))
    return 0


def build(project: Path, dist: Path) -> Path:
    """Build the sdist, and the wheel from nothing but the sdist. Returns the wheel."""
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        # what a build leaves in a checkout may be of an older state, and would be taken along
        shutil.copytree(project, source, ignore=_only_sources)
        sdist = _built("build_sdist", source, dist, "*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        return _built("build_wheel", Path(folder) / sdist.name.removesuffix(".tar.gz"), dist, "*.whl")


def installed(environment: Path, lock: Path, wheel: Path) -> Path:
    """Make an environment of the packages of a lock file and a wheel. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python), "install"]
    subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(lock)], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return python


def bill_of(python: Path, pyproject: Path, *options: str) -> dict[str, Any]:
    """Return the bill of materials (CycloneDX) of what is installed for a Python, the same for the same packages.

    `options` are further ones of cyclonedx-py.
    """
    command = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "environment",
        str(python),
        "--pyproject",
        str(pyproject),
        *options,
    ]
    with tempfile.TemporaryDirectory() as folder:
        bill = Path(folder) / "bill.json"
        subprocess.run([*command, "--output-reproducible", "--output-format", "JSON", "-o", str(bill)], check=True)
        found: dict[str, Any] = json.loads(bill.read_text())
    return found


def licences(bill: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each component of a bill of materials: its name, version and licences."""
    for component in sorted(bill["components"], key=lambda one: str(one["name"]).casefold()):
        yield f"{component['name']} {component['version']}: {', '.join(_names(component)) or 'unknown'}"


def _names(component: Mapping[str, Any]) -> list[str]:
    names = []
    for entry in component.get("licenses", ()):
        licence = entry.get("license", {})
        names.append(entry.get("expression") or licence.get("id") or licence.get("name") or "unknown")
    return list(dict.fromkeys(names))


def _only_sources(folder: str, names: Sequence[str]) -> set[str]:
    left_out = {"build", "dist", "tests", "__pycache__"}
    return {name for name in names if name in left_out or name.startswith(".") or name.endswith(".egg-info")}


def _built(hook: str, source: Path, dist: Path, pattern: str) -> Path:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "315532800")}
    command = [sys.executable, "-c", _BUILD, hook, str(dist.resolve())]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ChildProcessError(f"{hook} failed: {done.stderr.strip()}")
    (built,) = dist.glob(pattern)
    return built


if __name__ == "__main__":
    sys.exit(main())
