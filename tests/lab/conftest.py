# SPDX-License-Identifier: Apache-2.0
"""What the lab's tests share."""

from pathlib import Path

import pytest


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test's labs make theirs, so that what they leave behind is seen."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path
