# SPDX-License-Identifier: Apache-2.0
"""The tables on DuckDB: those parts of PySpark's DataFrame API that their definitions use, and a build with them."""

from weir.pipeline.duck import functions
from weir.pipeline.duck.functions import Window

__all__ = ["Window", "functions"]
