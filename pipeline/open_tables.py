# SPDX-License-Identifier: Apache-2.0
"""The tables, opened for SQL queries. Parquet is read with DuckDB (the extra `history`), which needs no Java."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weir.pipeline.tables import POINTER, Table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class TablesError(Exception):
    """The tables cannot answer a query. The text is a sentence without the full stop."""


def connect(**settings: str) -> DuckDBPyConnection:
    """Open an empty database whose times are UTC."""
    import duckdb

    # everything needed is installed: DuckDB must not download extensions
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False, **settings})
    connection.execute("SET TimeZone = 'UTC'")  # before 2.0 DuckDB cannot set it while it opens
    return connection


class OpenTables:
    """The tables in a folder. Each is a view once it was opened; TablesError where one cannot be read.

    What is read is what was there at the begin: of each day, the tables of the run that its pointer named then. Where
    no day has a pointer, it is every Parquet file in a table's folder.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._connection = connect()
        except ModuleNotFoundError as error:
            raise TablesError("reading tables needs DuckDB: pip install 'kafka-weir[history]'") from error
        self.path = path
        self.facts = published(path)
        """What was published of each day, by its folder's path."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def has(self, table: Table) -> bool:
        """Return whether the folder has any file of a table."""
        return bool(self.facts or self._files(table.name))

    def open(self, table: Table, first: date | None = None, until: date | None = None, *, by_day: bool = False) -> None:
        """Open a table with at least the rows in its folders of the days from `first` up to but without `until`.

        With `by_day` it has to be in one folder per day, and gets the column `date`.
        """
        import duckdb

        files = self._files(table.name)
        folder = self.path / table.name
        if not files and self.facts:
            self.open_empty(table)
            return
        if not files:
            raise TablesError(f"{self.path} has no table {table.name}: no {table.name}/*.parquet")
        # where no file is of these days, one is opened for its columns
        wanted = [file for file in files if _is_of_days(file, first, until)] or files[:1]
        try:
            names = list(map(str, wanted))
            found = self._connection.read_parquet(names, hive_partitioning=True, union_by_name=True)
            wanted_columns = [*table.columns, *(["date"] if by_day else [])]
            missing = [column for column in wanted_columns if column not in found.columns]
            if missing:
                raise TablesError(f"{folder} lacks {', '.join(missing)}")
            found.create_view(table.name)
        except duckdb.Error as error:
            raise TablesError(f"{folder} cannot be read: {_first_line(error)}") from error

    def open_empty(self, table: Table) -> None:
        """Open a table without rows. Spark writes no file of one whose windows have folders of their own."""
        columns = ", ".join(f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in table.columns.items())
        self._connection.execute(
            f'CREATE VIEW {table.name} AS SELECT {columns}, CAST(NULL AS DATE) AS "date" WHERE FALSE'
        )

    def rows(self, query: str, **values: object) -> list[Any]:
        """Run a query with `values` for its named parameters, and return the rows."""
        import duckdb

        try:
            return self._connection.execute(query, values).fetchall()
        except duckdb.Error as error:
            raise TablesError(f"{self.path} cannot be read: {_first_line(error)}") from error

    def _files(self, name: str) -> list[Path]:
        if self.facts:
            folders = (table_folder(folder, facts, name) for folder, facts in self.facts.items())
            return sorted(file for folder in folders for file in folder.rglob("*.parquet"))
        # a job's unfinished files are below _temporary
        return sorted(
            file
            for file in (*self.path.glob(f"{name}.parquet"), *(self.path / name).rglob("*.parquet"))
            if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(self.path).parts)
        )


def table_folder(folder: Path, facts: Mapping[str, Any], table: str) -> Path:
    """Return the folder in which a table of a day is; `facts` are what its pointer says."""
    return folder / str(facts["run"]) / table


def published(path: Path) -> dict[Path, dict[str, Any]]:
    """Return what runs have published of each day, by the folder of the day: see POINTER."""
    found = {}
    for pointer in sorted(path.glob(f"date=*/{POINTER}")):
        try:
            found[pointer.parent] = dict(json.loads(pointer.read_bytes()))
        except (OSError, ValueError) as error:
            raise TablesError(f"{pointer} cannot be read: {_first_line(error)}") from error
    return found


def _is_of_days(file: Path, first: date | None, until: date | None) -> bool:
    """Whether a file may have rows of these days. So may one whose folder names no day."""
    for part in file.parts:
        if part.startswith("date="):
            try:
                day = date.fromisoformat(part.removeprefix("date="))
            except ValueError:
                return True
            return (first is None or day >= first) and (until is None or day < until)
    return True


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
