# SPDX-License-Identifier: Apache-2.0
"""A made-up past for each test of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.page.past import Past


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path / "tables")
