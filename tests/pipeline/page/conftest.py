"""A made-up past for each test of the page, and Chromium for those that open it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.page.browser import Browser
from tests.pipeline.page.past import Past


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path / "tables")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed: the page is not opened in a browser")
    found = Browser(chromium, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
