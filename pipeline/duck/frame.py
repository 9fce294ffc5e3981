# SPDX-License-Identifier: Apache-2.0
"""Spark's DataFrame over DuckDB: a query, of which each step makes a longer one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from duckdb import DuckDBPyConnection

from weir.pipeline.duck.functions import Column, col, column_sql

_tables: Final = count()


@dataclass(frozen=True, slots=True)
class DataFrame:
    """The rows of a query. What only places rows, as `repartition`, leaves them where they are."""

    connection: DuckDBPyConnection
    query: str

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """The columns with DuckDB's names of their types."""
        return [(str(name), str(kind)) for name, kind, *_ in self._all(f"DESCRIBE {self.query}")]

    @property
    def columns(self) -> list[str]:
        return [name for name, _ in self.dtypes]

    def collect(self) -> list[dict[str, Any]]:
        names = self.columns
        return [dict(zip(names, row, strict=True)) for row in self._all(self.query)]

    def kept(self) -> DataFrame:
        """Compute the rows once."""
        name = f"kept_{next(_tables)}"
        self.connection.execute(f"CREATE TEMP TABLE {name} AS {self.query}")
        return DataFrame(self.connection, f"FROM {name}")

    def count(self) -> int:
        return int(self._all(f"SELECT count(*) FROM ({self.query})")[0][0])  # noqa: S608

    def select(self, *columns: Any) -> DataFrame:
        return self._select(", ".join(map(_selected, columns)))

    def where(self, condition: Any) -> DataFrame:
        return self._select("*", f"WHERE {condition if isinstance(condition, str) else condition.sql}")

    def withColumns(self, columns: Mapping[str, Any]) -> DataFrame:
        there = set(self.columns)
        changed = [column.alias(name).selected() for name, column in columns.items() if name in there]
        added = [column.alias(name).selected() for name, column in columns.items() if name not in there]
        star = f"* REPLACE ({', '.join(changed)})" if changed else "*"
        return self._select(", ".join([star, *added]))

    def withColumn(self, name: str, column: Any) -> DataFrame:
        return self.withColumns({name: column})

    def withColumnRenamed(self, before: str, name: str) -> DataFrame:
        return self._select(f'* RENAME ("{before}" AS "{name}")')

    def drop(self, *names: str) -> DataFrame:
        gone = [f'"{name}"' for name in self.columns if name in names]
        return self._select(f"* EXCLUDE ({', '.join(gone)})") if gone else self

    def toDF(self, *names: str) -> DataFrame:
        return self._select("*", f"AS named({', '.join(map(column_sql, names))})")

    def fillna(self, value: int, names: Sequence[str]) -> DataFrame:
        return self.withColumns({name: Column(f"coalesce({column_sql(name)}, {value})") for name in names})

    def distinct(self) -> DataFrame:
        return self._select("DISTINCT *")

    def dropDuplicates(self, names: Sequence[str]) -> DataFrame:
        return self._select(f"DISTINCT ON ({', '.join(map(column_sql, names))}) *")

    def union(self, other: DataFrame) -> DataFrame:
        return DataFrame(self.connection, f"(({self.query}) UNION ALL ({other.query}))")

    def join(self, other: DataFrame, on: str | Sequence[str], how: str = "inner") -> DataFrame:
        names = [on] if isinstance(on, str) else on
        kind = {"inner": "JOIN", "left": "LEFT JOIN", "left_anti": "ANTI JOIN"}[how]
        using = ", ".join(map(column_sql, names))
        return DataFrame(self.connection, f"SELECT * FROM ({self.query}) {kind} ({other.query}) USING ({using})")  # noqa: S608 - of definitions

    def groupBy(self, *keys: Any) -> Grouped:
        return Grouped(self, keys)

    def repartition(self, *_places: Any) -> DataFrame:
        return self

    def sortWithinPartitions(self, *_names: str) -> DataFrame:
        return self

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        return list(self.connection.execute(query).fetchall())

    def _select(self, what: str, more: str = "") -> DataFrame:
        return DataFrame(self.connection, f"SELECT {what} FROM ({self.query}) {more}")  # noqa: S608


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows by their `keys`."""

    frame: DataFrame
    keys: tuple[Any, ...]

    def agg(self, *columns: Column) -> DataFrame:
        return self.frame._select(", ".join(map(_selected, (*self.keys, *columns))), "GROUP BY ALL")


def _selected(column: Any) -> str:
    if column == "*" if isinstance(column, str) else False:
        return "*"
    return (col(column) if isinstance(column, str) else column).selected()
