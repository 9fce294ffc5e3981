"""Spark's functions as SQL for DuckDB, under Spark's names: those that the tables are made with.

Each means what Spark means by it without ANSI mode: a division by 0 and a failed cast are null, `floor` is a whole
number, `size` of null is -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

TYPES: Final = {
    **{"boolean": "BOOLEAN", "double": "DOUBLE", "int": "INTEGER", "long": "BIGINT", "bigint": "BIGINT"},
    **{"string": "VARCHAR", "timestamp": "TIMESTAMPTZ"},
}
"""DuckDB's names of Spark's types."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """An expression, and what it is called where it is selected: by several names where it makes several columns."""

    sql: str
    names: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    """Further expressions beside it, as of `posexplode`."""

    def alias(self, *names: str) -> Column:
        return replace(self, names=names)

    def selected(self) -> str:
        of = (self.sql, *self.more)
        if not self.names:
            return ", ".join(of)
        return ", ".join(f"{sql} AS {_quoted(name)}" for sql, name in zip(of, self.names, strict=True))

    def cast(self, kind: str) -> Column:
        return Column(f"TRY_CAST({self.sql} AS {TYPES[kind]})", self.names)

    def over(self, window: Window) -> Column:
        return Column(f"{self.sql} OVER ({window.sql()})")

    def getField(self, name: str) -> Column:
        return Column(f"({self.sql}).{_quoted(name)}")

    def isNull(self) -> Column:
        return Column(f"({self.sql} IS NULL)")

    def isNotNull(self) -> Column:
        return Column(f"({self.sql} IS NOT NULL)")

    def isin(self, values: list[str]) -> Column:
        return Column(f"({self.sql} IN ({', '.join(lit(value).sql for value in values)}))")

    def between(self, first: Any, last: Any) -> Column:
        return Column(f"({self.sql} BETWEEN {_value(first)} AND {_value(last)})")

    def endswith(self, end: str) -> Column:
        return Column(f"ends_with({self.sql}, {_value(end)})")

    def bitwiseAND(self, other: Any) -> Column:
        return self._with("&", other)

    def bitwiseOR(self, other: Any) -> Column:
        return self._with("|", other)

    def when(self, condition: Column, value: Any) -> Column:
        return Column(f"{self.sql.removesuffix(' END')} WHEN {condition.sql} THEN {_value(value)} END")

    def otherwise(self, value: Any) -> Column:
        return Column(f"{self.sql.removesuffix(' END')} ELSE {_value(value)} END")

    def _with(self, operator: str, other: Any) -> Column:
        return Column(f"({self.sql} {operator} {_value(other)})")

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __truediv__(self, other: Any) -> Column:
        return Column(f"(CAST({self.sql} AS DOUBLE) / nullif({_value(other)}, 0))")

    def __and__(self, other: Column) -> Column:
        return self._with("AND", other)

    def __or__(self, other: Column) -> Column:
        return self._with("OR", other)

    def __add__(self, other: Any) -> Column:
        return self._with("+", other)

    def __sub__(self, other: Any) -> Column:
        return self._with("-", other)

    def __mul__(self, other: Any) -> Column:
        return self._with("*", other)

    def __mod__(self, other: Any) -> Column:
        return self._with("%", other)

    def __lt__(self, other: Any) -> Column:
        return self._with("<", other)

    def __le__(self, other: Any) -> Column:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> Column:
        return self._with(">", other)

    def __ge__(self, other: Any) -> Column:
        return self._with(">=", other)

    def __eq__(self, other: Any) -> Column:  # type: ignore[override]
        return self._with("=", other)

    def __ne__(self, other: Any) -> Column:  # type: ignore[override]
        return self._with("<>", other)


@dataclass(frozen=True, slots=True)
class Window:
    """Rows beside a row."""

    partition: tuple[Any, ...] = ()
    order: tuple[Any, ...] = ()
    frame: str = ""

    unboundedPreceding: ClassVar[None] = None

    def sql(self) -> str:
        by = f"PARTITION BY {', '.join(map(column_sql, self.partition))}"
        order = ", ".join(map(column_sql, self.order))  # none of them is null
        return f"{by}{order and f' ORDER BY {order}'} {self.frame}"

    @staticmethod
    def partitionBy(*names: str) -> Window:
        return Window(names)

    def orderBy(self, *names: Any) -> Window:
        return replace(self, order=names)

    def rowsBetween(self, first: int | None, last: int) -> Window:
        return replace(self, frame=f"ROWS BETWEEN {_bound(first)} AND {_bound(last)}")

    def rangeBetween(self, first: int | None, last: int) -> Window:
        return replace(self, frame=f"RANGE BETWEEN {_bound(first)} AND {_bound(last)}")


def _bound(rows: int | None) -> str:
    return "UNBOUNDED PRECEDING" if rows is None else "CURRENT ROW" if rows == 0 else f"{-rows} PRECEDING"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def column_sql(column: Any) -> str:
    """The SQL of a column, or of one that is named."""
    return column.sql if isinstance(column, Column) else col(column).sql


def _value(value: Any) -> str:
    """The SQL of a column or of a value."""
    return value.sql if isinstance(value, Column) else lit(value).sql


def col(name: str) -> Column:
    *_, last = parts = name.split(".")
    return Column(".".join(map(_quoted, parts)), (last,))


def lit(value: Any) -> Column:
    if isinstance(value, str):
        return Column(_text(value))
    if isinstance(value, float):
        return Column(f"CAST({value!r} AS DOUBLE)")
    return Column("NULL" if value is None else str(value))


def expr(text: str) -> Column:
    return Column(f"({text.replace(' div ', ' // ')})")


def when(condition: Column, value: Any) -> Column:
    return Column(f"CASE WHEN {condition.sql} THEN {_value(value)} END")


def desc(name: str) -> Column:
    return Column(f"{column_sql(name)} DESC")


def struct(*columns: Any) -> Column:
    fields = (col(column) if isinstance(column, str) else column for column in columns)
    return Column(f"struct_pack({', '.join(f'{_quoted(of.names[0])} := {of.sql}' for of in fields)})")


def array(*columns: Column) -> Column:
    return Column(f"[{', '.join(column.sql for column in columns)}]")


def concat(*columns: Any) -> Column:
    return Column(f"({' || '.join(map(column_sql, columns))})")


def size(column: Any) -> Column:
    return Column(f"coalesce(len({column_sql(column)}), -1)")


def get(column: Any, place: Column) -> Column:
    return Column(f"list_extract({column_sql(column)}, CAST({place.sql} AS BIGINT) + 1)")


def array_contains(column: Any, value: Column) -> Column:
    of = column_sql(column)
    lacks = f"WHEN {of} IS NULL OR list_count({of}) < len({of}) THEN NULL"
    return Column(f"CASE WHEN list_contains({of}, {value.sql}) THEN TRUE {lacks} ELSE FALSE END")


def transform(column: Any, function: Callable[[Column], Column]) -> Column:
    return Column(f"list_transform({column_sql(column)}, lambda x: {function(Column('x')).sql})")


def aggregate(column: Any, first: Column, function: Callable[[Column, Column], Column]) -> Column:
    merged = function(Column("x"), Column("y")).sql
    return Column(f"list_reduce({column_sql(column)}, lambda x, y: {merged}, {first.sql})")


def sort_array(column: Any, asc: bool = True) -> Column:
    return Column(f"list_{'' if asc else 'reverse_'}sort({column_sql(column)})")


def explode(column: Any) -> Column:
    return Column(f"unnest({column_sql(column)})")


def posexplode(column: Any) -> Column:
    of = column_sql(column)
    return Column(f"unnest(range(len({of})))", ("pos", "col"), (f"unnest({of})",))


def inline(column: Any) -> Column:
    return Column(f"unnest({column_sql(column)}, max_depth := 2)")


def floor(column: Any) -> Column:
    return Column(f"TRY_CAST(floor({column_sql(column)}) AS BIGINT)")


def shiftleft(column: Any, bits: int) -> Column:
    return Column(f"({column_sql(column)} * {1 << bits})")


def shiftright(column: Any, bits: int) -> Column:
    return Column(f"({column_sql(column)} >> {bits})")


def xxhash64(*columns: Any) -> Column:
    """Another hash than Spark's: no table has one."""
    return Column(f"CAST(hash({', '.join(map(column_sql, columns))}) >> 1 AS BIGINT)")


def timestamp_micros(column: Any) -> Column:
    return Column(f"make_timestamptz(CAST({column_sql(column)} AS BIGINT))")


def timestamp_seconds(column: Any) -> Column:
    return Column(f"make_timestamptz(CAST({column_sql(column)} AS BIGINT) * 1000000)")


def to_json(column: Column) -> Column:
    return Column(f"CAST(json_merge_patch('{{}}', to_json({column.sql})) AS VARCHAR)")  # leaves out what is null


def min_by(column: Any, by: Any) -> Column:
    return _by("min", column, by)


def max_by(column: Any, by: Any) -> Column:
    return _by("max", column, by)


def _by(what: str, column: Any, by: Any) -> Column:
    # DuckDB passes over nulls, which are values to Spark
    return Column(f"arg_{what}({{'v': {column_sql(column)}}}, {column_sql(by)}).v")


def collect_list(column: Any) -> Column:
    of = column_sql(column)
    return Column(f"coalesce(list({of}) FILTER ({of} IS NOT NULL), [])")


def collect_set(column: Any) -> Column:
    of = column_sql(column)
    return Column(f"coalesce(list(DISTINCT {of}) FILTER ({of} IS NOT NULL), [])")


def last(column: Any, ignorenulls: bool = False) -> Column:
    return Column(f"last_value({column_sql(column)}{' IGNORE NULLS' if ignorenulls else ''})")


def broadcast(frame: Any) -> Any:
    return frame


def _named(name: str) -> Callable[..., Column]:
    def function(*columns: Any) -> Column:
        return Column(f"{name}({', '.join(_value(of) if isinstance(of, int) else column_sql(of) for of in columns)})")

    return function


array_distinct = _named("list_distinct")
array_max, array_min = _named("list_max"), _named("list_min")
bool_or, coalesce, count, first, flatten = map(_named, ("bool_or", "coalesce", "count", "first", "flatten"))
greatest, lag, lead, least, length = map(_named, ("greatest", "lag", "lead", "least", "length"))
max, min, nullif, round, rtrim, sum = map(_named, ("max", "min", "nullif", "round", "rtrim", "sum"))
octet_length, substring = _named("strlen"), _named("substring")
unix_micros = _named("epoch_us")
