"""The images: what they are made of, and, where buildah is at hand, that they can be made and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
LINES = (PROJECT / "Dockerfile").read_text().replace("\\\n", "").splitlines()
# Another base, where no registry can be reached: an image of this machine that has Python and pip.
BASE = os.environ.get("WEIR_TEST_BASE", "docker.io/library/python:3.11-slim-bookworm")


def copied() -> set[str]:
    """What the Dockerfile copies out of the project."""
    copies = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from" not in line]
    return {name for names in copies for name in names}


def packages() -> set[str]:
    """The packages that are installed."""
    return set(tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])


def test_every_package_is_installed() -> None:
    """One that is missing shows only when what was installed is started."""
    roots = [PROJECT / name for name in packages() if "." not in name]
    found = [path.parent.relative_to(PROJECT) for root in roots for path in root.rglob("__init__.py")]
    assert {".".join(path.parts) for path in found} <= packages()


def test_image_has_every_package() -> None:
    assert {name.partition(".")[0] for name in packages()} <= copied()


def test_what_is_copied_is_not_ignored() -> None:
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()


def test_packages_of_python_are_fetched_by_their_hashes_alone() -> None:
    commands = [command for line in LINES if line.startswith("RUN ") for command in line[4:].split("&&")]
    fetching = [
        command for command in commands if re.search(r"\bpip (--python \S+ )?(install|wheel|download) ", command)
    ]
    assert len(fetching) == 4
    for command in fetching:
        assert "--require-hashes" in command or "--no-index" in command, command


@pytest.fixture(scope="module")
def images() -> dict[str, str]:
    """Both images by their targets. They are built without a daemon, and run without a container's privileges."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: apt-get install buildah")
    if buildah("pull", "--policy", "missing", BASE).returncode:
        pytest.skip(f"the base {BASE} cannot be pulled: name another in WEIR_TEST_BASE")
    built = {}
    for target in ("sidecar", "capture"):
        built[target] = f"localhost/weir-test-{target}"
        options = ["--build-arg", f"BASE={BASE}", "--target", target, "--tag", built[target]]
        done = buildah("build", "--isolation", "chroot", *options, str(PROJECT))
        assert done.returncode == 0, done.stderr[-2000:]
    return built


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sidecar", "capture"])
def test_image_runs(images: dict[str, str], target: str) -> None:
    container = buildah("from", images[target]).stdout.strip()
    try:
        done = buildah("run", "--isolation", "chroot", container, "--", "weir", "--version")
        assert done.stdout.startswith("weir "), done.stderr
        needed = "import ctypes, shutil; ctypes.CDLL('libnftables.so.1'); assert shutil.which('ss')"
        found = buildah("run", "--isolation", "chroot", container, "--", "/opt/weir/bin/python", "-c", needed)
        assert (found.returncode == 0) is (target == "capture"), found.stderr
    finally:
        buildah("rm", container)


def buildah(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, timeout=900)
