# SPDX-License-Identifier: Apache-2.0
"""The tables that `weir report build` wrote, for commands that read them with DuckDB."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.spark import LAUNCH_SETTINGS, start_spark

_HERE = "file://"


@contextlib.contextmanager
def tables_at(
    option: str, address: str, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Path]:
    """Yield the folder of the tables that an `option` names.

    Where its `address` is of another file system, as s3a://bucket/tables, Spark copies the days from `since` to `until`
    into a folder that lasts as long as the block. CommandError says what cannot be read there, or in the block.
    """
    from weir.pipeline.open_tables import TablesError

    with contextlib.ExitStack() as stack:
        folder = Path(address.removeprefix(_HERE))
        try:
            if "://" in address and not address.startswith(_HERE):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-tables-")))
                _copy(address, folder, since, until)
            elif not folder.is_dir():
                raise CommandError(f"{option}: {address} is no folder.", WRONG_USAGE)
            yield folder
        except TablesError as error:
            raise CommandError(f"{option}: {str(error).replace(str(folder), address)}.") from error


def _copy(address: str, folder: Path, since: datetime | None, until: datetime | None) -> None:
    try:
        from weir.pipeline.spark_errors import SPARK_ERRORS, first_line
        from weir.pipeline.storage import Output
    except ModuleNotFoundError as error:
        raise CommandError(f"{address} is read by PySpark: pip install 'kafka-weir[pipeline]'.") from error
    spark = start_spark("local[1]", LAUNCH_SETTINGS)
    beside = timedelta(days=1)  # days are UTC's, and a range may be of another zone
    first, last = (since and (since - beside).date(), until and (until + beside).date())
    try:
        tables = Output(spark, address)
        for day in tables.days():
            if (first is None or day >= first) and (last is None or day < last):
                tables.get(day, folder)
    except SPARK_ERRORS as error:
        raise CommandError(f"{address} cannot be read: {first_line(error)}.") from error
    finally:
        spark.stop()
