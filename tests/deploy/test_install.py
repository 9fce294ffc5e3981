# SPDX-License-Identifier: Apache-2.0
"""Every way to install weir, and weir beside others: one name, `weir`, and no file that is somebody else's."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import PROJECT, Environment
from tests.one_name import files_of_two_modules
from tests.proxy.test_config_limits import BASE
from weir.cli.version import __version__

pytestmark = pytest.mark.long

WAYS = ("wheel", "sdist", "clone", "editable")
# A limiter of somebody's that uses a package with the name of a room.
MINE = """
from limits import NAME
from weir.limits.built_in import RecordRateLimiter
class Limiter(RecordRateLimiter):
    assert NAME == "that of PyPI"
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone of the repository."""
    folder = tmp_path_factory.mktemp("cloned") / "weir"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{PROJECT}", folder], check=True, timeout=300)
    return folder


def installed(way: str, folder: Path, dist: Path, clone: Path) -> Environment:
    made = Environment(folder)
    if way == "editable":
        made.install("--editable", clone)
    else:
        made.install({"wheel": next(dist.glob("*.whl")), "sdist": next(dist.glob("*.tar.gz")), "clone": clone}[way])
    return made


@pytest.mark.parametrize("way", WAYS)
def test_weir_is_the_one_name_that_is_installed(way: str, tmp_path: Path, dist: Path, clone: Path) -> None:
    environment = installed(way, tmp_path / "env", dist, clone)
    done = environment.run("weir", "--version", cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f"weir {__version__}\n", "")
    rooms = [link.name for link in (PROJECT / "weir").iterdir() if link.is_symlink()]
    assert len(rooms) == 12
    script = (
        "import importlib.util as of, sys, weir.proxy.sidecar, weir.lab.jars\n"
        f"print(*[name for name in {rooms} if of.find_spec(name)], weir.lab.jars.read_manifest('tools-2.8.2')[0].path)"
    )
    done = environment.run("python", "-c", script, cwd=tmp_path)
    assert done.stdout.split("/")[0] == "com", done.stderr  # no room, and a jar: files that are no modules are there
    names = {path.name.partition(".")[0] for path in environment.packages.iterdir()} - {"of-the-tests"}
    version = __version__.replace(".", "_")
    beside = {"__editable__", f"__editable___kafka_weir_{version}_finder"} if way == "editable" else {"weir"}
    assert names - {"__pycache__"} == {f"kafka_weir-{__version__.partition('.')[0]}", *beside}


@pytest.mark.parametrize("command", [("weir",), ("python", "-P", "-m", "weir")], ids=" ".join)
def test_in_the_checkout_names_of_rooms_mean_other_packages(
    tmp_path: Path, dist: Path, clone: Path, command: tuple[str, ...]
) -> None:
    """`python -m` without `-P` finds the checkout's folders before all that is installed, as CONTRIBUTING.md tells."""
    environment = installed("editable", tmp_path / "env", dist, clone)
    (environment.packages / "limits.py").write_text('NAME = "that of PyPI"\n')
    (environment.packages / "mine.py").write_text(MINE)
    limits = '[[limits.client]]\nclient_id = "a"\n"rate.limiters" = ["mine.Limiter"]\n"record.rate.limit" = 5\n'
    (tmp_path / "weir.toml").write_text(BASE + limits)
    check = ("check", "--config", str(tmp_path / "weir.toml"))
    done = environment.run(*command, *check, cwd=clone)
    assert done.returncode == 0, done.stderr
    done = environment.run("python", "-m", "weir", *check, cwd=clone)
    assert done.returncode == 2
    assert "cannot import name 'NAME' from 'limits'" in done.stderr


def test_a_room_that_is_imported_by_its_folders_name_is_found() -> None:
    script = (
        "import sys; from tests.one_name import files_of_two_modules\n"
        "import weir.limits.facts; assert files_of_two_modules(sys.modules) == []\n"
        "import limits.facts; print(files_of_two_modules(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert "['limits.facts', 'weir.limits.facts']" in done.stdout, done.stderr


def test_modules_of_the_tests_have_one_name() -> None:
    assert files_of_two_modules(sys.modules) == []


def damaged(environment: Environment, package: str) -> list[str]:
    """Return which of an installed package's files are gone, or are not what was installed."""
    (record,) = environment.packages.glob(f"{package}-*.dist-info/RECORD")
    found = []
    for name, digest, _ in csv.reader(record.read_text().splitlines()):
        file = environment.packages / name
        algorithm, _, wanted = digest.partition("=")
        if not file.exists():
            found.append(name)
        elif digest:
            real = base64.urlsafe_b64encode(hashlib.new(algorithm, file.read_bytes()).digest()).decode().rstrip("=")
            found += [name] * (real != wanted)
    return found


@pytest.mark.integration
def test_weir_and_packages_named_like_rooms_keep_apart(tmp_path: Path, wheel: Path) -> None:
    """`limits` and `control` are packages of PyPI, too. Each is whole before and after the others come and go."""
    environment = Environment(tmp_path / "env", is_alone=True)
    others = {"limits": "limits==5.8.0", "flask_limiter": "flask-limiter==4.1.1", "control": "control==0.10.2"}
    environment.pip("install", "--no-deps", *others.values())
    environment.pip("install", "--no-deps", wheel)
    for package in (*others, "kafka_weir"):
        assert damaged(environment, package) == []
    origin = "import importlib.util as of; print(*[of.find_spec(n).origin for n in ('limits', 'control', 'weir')])"
    found = [f"{environment.packages}/{name}/__init__.py" for name in ("limits", "control", "weir")]
    assert environment.run("python", "-c", origin, cwd=tmp_path).stdout.split() == found
    environment.pip("uninstall", "--yes", "limits", "control")
    assert damaged(environment, "kafka_weir") == damaged(environment, "flask_limiter") == []
    environment.pip("install", "--no-deps", others["limits"], others["control"])
    environment.pip("uninstall", "--yes", "kafka-weir")
    for package in others:
        assert damaged(environment, package) == []
    assert not (environment.packages / "weir").exists()


def test_demo_of_the_wheel_tells_what_it_does_and_lacks(tmp_path: Path, wheel: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(wheel)
    (here := tmp_path / "here").mkdir()
    assert "--fast" in environment.run("weir", "demo", "--help", cwd=here).stdout
    done = environment.run("weir", "demo", cwd=here, PATH=str(here), JAVA_HOME="")
    assert done.returncode == 1
    assert done.stdout.startswith("The demo failed: Kafka needs Java 17 or newer")
    assert list(here.iterdir()) == []
