"""The tables, opened for SQL queries. Parquet is read with DuckDB (the extra `history`), which needs no Java."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.tables import Table


class TablesError(Exception):
    """The tables cannot answer a query. The text is a sentence without the full stop."""


class OpenTables:
    """The tables in a folder. Each is a view once it was opened; TablesError where one cannot be read.

    TablesError is also raised where a job replaces tables meanwhile, as results could then be of two runs. This is
    checked at the begin and end of the `with` block, and whenever a table cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise TablesError("reading tables needs DuckDB: pip install 'kafka-weir[history]'") from error
        self.path = path
        # everything needed is installed: DuckDB must not download extensions
        self._connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False, "TimeZone": "UTC"})
        self._opened: dict[str, list[Path]] = {}

    def __enter__(self) -> Self:
        self._check_whole()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if error is None or isinstance(error, TablesError):
            self._check_whole()

    def has(self, table: Table) -> bool:
        """Return whether the folder has any file of a table."""
        return bool(self._files(table.name))

    def open(self, table: Table, first: date | None = None, until: date | None = None, *, by_day: bool = False) -> None:
        """Open a table with at least the rows in its folders of the days from `first` up to but without `until`.

        With `by_day` it has to be in one folder per day, and gets the column `date`.
        """
        import duckdb

        files = self._files(table.name)
        self._opened[table.name] = files
        folder = self.path / table.name
        if not files:
            raise TablesError(f"{self.path} has no table {table.name}: no {table.name}/*.parquet")
        # where no file is of these days, one is opened for its columns
        wanted = [file for file in files if _is_of_days(file, first, until)] or files[:1]
        try:
            found = self._connection.read_parquet(list(map(str, wanted)), hive_partitioning=True, union_by_name=True)
            wanted_columns = [*table.columns, *(["date"] if by_day else [])]
            missing = [column for column in wanted_columns if column not in found.columns]
            if missing:
                raise TablesError(f"{folder} lacks {', '.join(missing)}")
            found.create_view(table.name)
        except duckdb.Error as error:
            raise TablesError(f"{folder} cannot be read: {_first_line(error)}") from error

    def rows(self, query: str, **values: object) -> list[Any]:
        """Run a query with `values` for its named parameters, and return the rows."""
        import duckdb

        try:
            return self._connection.execute(query, values).fetchall()
        except duckdb.Error as error:
            raise TablesError(f"{self.path} cannot be read: {_first_line(error)}") from error

    def _check_whole(self) -> None:
        """Raise TablesError if a job moves tables to their places, has done so meanwhile, or was killed doing so."""
        for marker in sorted(self.path.glob("_weir/ready-*")):
            day = marker.name.removeprefix("ready-")
            raise TablesError(
                f"the tables of {day} in {self.path} are being replaced: wait for weir report build, or run it again if"
                " it was killed"
            )
        for name, files in self._opened.items():
            if self._files(name) != files:
                raise TablesError(f"{self.path}/{name} was replaced while it was read: read it again")

    def _files(self, name: str) -> list[Path]:
        # a job's unfinished files are below _temporary
        return sorted(
            file
            for file in (*self.path.glob(f"{name}.parquet"), *(self.path / name).rglob("*.parquet"))
            if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(self.path).parts)
        )


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
