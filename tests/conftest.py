"""For every test: Hypothesis without its clock, for a busy machine is no fault of the code under test.

Also one name for each module; and, for some tests, Chromium and what is released.

The profile is global, so it is loaded here and not where some folder's tests would have it by chance. On CI
Hypothesis's own profile for CI is its parent.
"""

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
    "lab/test_demo_integration.py",
    "integration/test_export.py",
    "integration/test_rolling_start.py",
    "integration/test_move_faults.py",
    "integration/test_upgrade.py",
)
"""Files that take minutes: begun late, one of them would keep a worker busy when the others have ended."""

COMPUTING = {"deploy", "lag", "limits", "pipeline", "planning", "protocol", "quota", "samples"}
"""Folders in which no test measures time, but for those on brokers: a moved clock, or none."""

ONE_WORKER = "tests/integration/pair/"
"""A folder whose files share brokers."""


class _ByBrokers(LoadScopeScheduling):  # type: ignore[misc] # xdist has no annotations
    """Gives each worker files, and those that share brokers to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_WORKER if nodeid.startswith(ONE_WORKER) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return it in place of `--dist loadfile`'s own."""
    return _ByBrokers(config, log) if config.getvalue("dist") == "loadfile" else None


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
        place = BEGUN_FIRST.index(file) if file in BEGUN_FIRST else len(BEGUN_FIRST) + (not is_on_brokers)
        places[item.nodeid] = place
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
