# SPDX-License-Identifier: Apache-2.0
"""The file that the tests of moves keep their journal in."""

from pathlib import Path

import pytest

from tests.control.moving import journal_in
from weir.control.move_journal import JournalFile


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    """A plan's, of which nothing is written down yet."""
    return journal_in(tmp_path)
