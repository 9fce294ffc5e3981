# SPDX-License-Identifier: Apache-2.0
"""For every test: Hypothesis without its clock, for a busy machine is no fault of the code under test.

Also one name for each module; and, for some tests, Chromium and what is released.

The profile is global, so it is loaded here and not where some folder's tests would have it by chance. On CI
Hypothesis's own profile for CI is its parent.
"""

import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.browser import Browser
from tests.one_name import files_of_two_modules
from weir.lab.release import build

# Half of the usual number of examples: `make unit` is run many times a day, each time with others.
settings.register_profile(
    "weir", parent=settings(), max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("weir")

# A shell has what it starts in the background ignore SIGINT, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


BEGUN_FIRST = (
    "integration/trio/",
    "lab/test_demo_integration.py",
    "integration/test_export.py",
    "integration/test_rolling_start.py",
    "integration/test_move_faults.py",
    "integration/test_upgrade.py",
)
"""What takes a worker minutes: begun late, a file or folder would keep it busy when the others have ended."""

COMPUTING = {"deploy", "lag", "limits", "pipeline", "planning", "protocol", "quota", "samples"}
"""Folders in which no test measures time, but for those on brokers: a moved clock, or none."""

OF_BROKERS = re.compile("integration|browser")
"""What a file of those folders has in it where a test of it is on brokers, or opens a page."""

TESTS = Path(__file__).parent

ONE_WORKER = ("tests/integration/pair/", "tests/integration/trio/")
"""Folders whose files share brokers."""


class _ByBrokers(LoadScopeScheduling):  # type: ignore[misc] # xdist has no annotations
    """Gives each worker files, and those that share brokers to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in ONE_WORKER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return it in place of `--dist loadfile`'s own."""
    return _ByBrokers(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no folder, or file, in which no test can have the mark that is asked for first: each takes a while to read.

    `computes` is set below, in some folders alone; there, tests on brokers say so, or open a page.
    """
    wanted = config.getoption("markexpr", "")
    folder = collection_path.relative_to(TESTS).parts[:1] if collection_path.is_relative_to(TESTS) else ()
    if not folder or folder[0].endswith(".py"):
        return None
    if wanted.startswith("computes "):
        return folder[0] not in COMPUTING or None
    if wanted.startswith("(integration or long) and not computes ") and folder[0] in COMPUTING:
        is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
        return (is_test and not OF_BROKERS.search(collection_path.read_text())) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that open a page in Chromium, and those that only compute.

    The longest files come first, those without brokers last.
    """
    places: dict[str, int] = {}
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.integration)
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        is_on_brokers = item.get_closest_marker("integration") is not None
        if not is_on_brokers and file.partition("/")[0] in COMPUTING and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.computes)
        last = len(BEGUN_FIRST) + (not is_on_brokers)
        places[item.nodeid] = next((n for n, first in enumerate(BEGUN_FIRST) if file.startswith(first)), last)
    items.sort(key=lambda item: places[item.nodeid])


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed: the page is not opened in a browser")
    found = Browser(chromium, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="session", autouse=True)
def _one_name_for_each_module() -> Iterator[None]:
    """Fail the run, at its end, where a room was imported by its folder's name: its classes would exist twice."""
    yield
    assert files_of_two_modules(sys.modules) == []


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build(Path(__file__).parents[1], folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The wheel."""
    (found,) = dist.glob("*.whl")
    return found
