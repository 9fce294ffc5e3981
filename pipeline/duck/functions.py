# SPDX-License-Identifier: Apache-2.0
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
        return _operator("&")(self, other)

    def bitwiseOR(self, other: Any) -> Column:
        return _operator("|")(self, other)

    def when(self, condition: Column, value: Any) -> Column:
        return Column(f"{self.sql.removesuffix(' END')} WHEN {condition.sql} THEN {_value(value)} END")

    def otherwise(self, value: Any) -> Column:
        return Column(f"{self.sql.removesuffix(' END')} ELSE {_value(value)} END")

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __truediv__(self, other: Any) -> Column:
        return Column(f"(CAST({self.sql} AS DOUBLE) / nullif({_value(other)}, 0))")


def _operator(sign: str) -> Callable[[Column, Any], Column]:
    return lambda column, other: Column(f"({column.sql} {sign} {_value(other)})")


_OPERATORS: Final = {
    **{"and": "AND", "or": "OR", "add": "+", "sub": "-", "mul": "*", "mod": "%"},
    **{"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "<>"},
}
for _name, _sign in _OPERATORS.items():
    setattr(Column, f"__{_name}__", _operator(_sign))


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


def struct(*columns: Any) -> Column:
    fields = (col(column) if isinstance(column, str) else column for column in columns)
    return Column(f"struct_pack({', '.join(f'{_quoted(of.names[0])} := {of.sql}' for of in fields)})")


def transform(column: Any, function: Callable[[Column], Column]) -> Column:
    return Column(f"list_transform({column_sql(column)}, lambda x: {function(Column('x')).sql})")


def aggregate(column: Any, first: Column, function: Callable[[Column, Column], Column]) -> Column:
    merged = function(Column("x"), Column("y")).sql
    return Column(f"list_reduce({column_sql(column)}, lambda x, y: {merged}, {first.sql})")


def sort_array(column: Any, asc: bool = True) -> Column:
    return Column(f"list_{'' if asc else 'reverse_'}sort({column_sql(column)})")


def posexplode(column: Any) -> Column:
    of = column_sql(column)
    return Column(f"unnest(range(len({of})))", ("pos", "col"), (f"unnest({of})",))


def last(column: Any, ignorenulls: bool = False) -> Column:
    return Column(f"last_value({column_sql(column)}{' IGNORE NULLS' if ignorenulls else ''})")


def shiftleft(column: Any, bits: int) -> Column:
    return Column(f"TRY({column_sql(column)} * {1 << bits})")


def shiftright(column: Any, bits: int) -> Column:
    return Column(f"({column_sql(column)} >> {bits})")


def broadcast(frame: Any) -> Any:
    return frame


def _as(template: str) -> Callable[..., Column]:
    """The function of columns, or their names, that is written like this."""

    def function(*columns: Any) -> Column:
        told = [_value(of) if isinstance(of, int) else column_sql(of) for of in columns]
        return Column(template.format(*told, all=", ".join(told)))

    return function


array, concat = _as("[{all}]"), _as("({0} || {1})")
array_contains = _as(
    "CASE WHEN list_contains({0}, {1}) THEN TRUE"
    " WHEN {0} IS NULL OR list_count({0}) < len({0}) THEN NULL ELSE FALSE END"
)
array_distinct, flatten = _as("list_distinct({0})"), _as("flatten({0})")
array_max, array_min = _as("list_max({0})"), _as("list_min({0})")
bool_or, count, first = _as("bool_or({0})"), _as("count({0})"), _as("first({0})")
coalesce, greatest, least = _as("coalesce({all})"), _as("greatest({all})"), _as("least({all})")
collect_list = _as("coalesce(list({0}) FILTER ({0} IS NOT NULL), [])")
collect_set = _as("coalesce(list(DISTINCT {0}) FILTER ({0} IS NOT NULL), [])")
desc = _as("{0} DESC")
explode, inline = _as("unnest({0})"), _as("unnest({0}, max_depth := 2)")
floor, round = _as("TRY_CAST(floor({0}) AS BIGINT)"), _as("round({0})")
get, size = _as("list_extract({0}, CAST({1} AS BIGINT) + 1)"), _as("coalesce(len({0}), -1)")
lag, lead = _as("lag({0})"), _as("lead({0})")
length, octet_length = _as("length({0})"), _as("strlen({0})")
max, min, sum = _as("max({0})"), _as("min({0})"), _as("sum({0})")
# DuckDB passes over nulls, which are values to Spark
max_by, min_by = _as("arg_max({{'v': {0}}}, {1}).v"), _as("arg_min({{'v': {0}}}, {1}).v")
nullif, rtrim = _as("nullif({0}, {1})"), _as("rtrim({0})")
substring = _as("substring({all})")
timestamp_micros = _as("make_timestamptz(CAST({0} AS BIGINT))")
timestamp_seconds = _as("make_timestamptz(CAST({0} AS BIGINT) * 1000000)")
to_json = _as("CAST(json_merge_patch('{{}}', to_json({0})) AS VARCHAR)")  # without what is null
unix_micros = _as("epoch_us({0})")
xxhash64 = _as("CAST(hash({all}) >> 1 AS BIGINT)")  # another hash than Spark's: no table has one
