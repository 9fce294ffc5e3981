# SPDX-License-Identifier: Apache-2.0
"""The DataFrame API that the tables are defined with: PySpark's, or that of `weir.pipeline.duck`.

One definition serves both: `F` and `Window` are DuckDB's within `with on(DUCKDB)`, and Spark's elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

SPARK: Final = "pyspark.sql"
DUCKDB: Final = "weir.pipeline.duck"

_engine: Final = ContextVar("engine", default=SPARK)


@contextlib.contextmanager
def on(engine: str) -> Iterator[None]:
    """Make columns of this engine until the block ends."""
    before = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(before)


if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData, Window
    from pyspark.sql import functions as F
else:
    Column = DataFrame = GroupedData = Any

    class _Chosen:
        """What has this name in the engine that is chosen when it is used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            importlib.import_module(f"{_engine.get()}.functions")
            return getattr(getattr(importlib.import_module(_engine.get()), self._name), name)

    F, Window = _Chosen("functions"), _Chosen("Window")

__all__ = ["DUCKDB", "SPARK", "Column", "DataFrame", "F", "GroupedData", "Window", "on"]
