# SPDX-License-Identifier: Apache-2.0
"""The docs tell the columns that the tables have."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.pipeline.tables import ALL_TABLES, Table

DOCS = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_docs_have_every_column_of_a_table(table: Table) -> None:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in table.columns.items())
    assert f" `{table.name}`: {columns}. " in " ".join(DOCS.split())
    assert f"| `{table.name}` |" in DOCS
