# SPDX-License-Identifier: Apache-2.0
"""`weir report`: builds tables from exported samples, and a page or five answers from the tables."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from weir.cli.errors import DONE, WRONG_USAGE, CommandError
from weir.cli.options import option, parsed, with_options
from weir.cli.quantities import parse_duration
from weir.cli.spark import LAUNCH_SETTINGS, start_spark
from weir.cli.tables import tables_at

if TYPE_CHECKING:
    from weir.pipeline.day_report import DayReport
    from weir.pipeline.page.contents import Contents

ENGINES = ("auto", "duckdb", "spark")
MOST_BYTES = 20_000_000
"""About 4 million partition samples: 16 million take DuckDB 6.5 GB of memory, and longer than Spark."""
MOST_SHOWN = 100
FIRST_YEAR, LAST_YEAR = 1971, 2999
"""The years of times that a page can be asked for. Others are slips, and an axis could leave Python's calendar."""

app = typer.Typer(
    help="Build tables from the samples that sidecars export, and a page or five answers from the tables."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Which samples become tables, where, and by what."""

    source: str = option("--input", None, "Hadoop path of the samples, or kafka://host:port/topic.", MISSING)
    output: str = option("--output", None, "Hadoop path of the tables.", MISSING)
    first: str = option("--from", None, "First day or hour (UTC), as 2026-11-02 or 2026-11-02T13.", MISSING)
    until: str = option("--to", None, "The day or hour after the last one.", MISSING)
    engine: str = option(
        "--engine", None, "duckdb, spark, or auto: DuckDB for days of up to 20 MB in a folder of this machine.", "auto"
    )
    master: str | None = option("--master", None, "Spark's master, where it is not local[*].")
    as_json: bool = option("--json", None, "Print JSON lines.", False)
    allow_empty: bool = option(
        "--allow-empty", None, "Take it that no sample of a day is there; replace its tables.", False
    )
    keep: str | None = option("--keep", None, "Delete the tables of days that are older before --to, as 90d.")
    command_config: Path | None = option("--command-config", None, "Kafka's client properties, for kafka://.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOptions:
    """The tables that a page or answers are made of, and the times that these are of."""

    source: str = option("--input", None, "Folder of the tables, here or on a file system of Hadoop's.", MISSING)
    since: str | None = option("--from", None, "First day or time, as 2026-11-02 or 2026-11-02T06:00; else all.")
    until: str | None = option("--to", None, "The day or time after the last.")
    timezone: str = option("--timezone", None, "Zone of all times, as Europe/Berlin.", "UTC")

    def read(self, top: int) -> tuple[Contents, tzinfo]:
        """Read the tables: at most `top` brokers, partitions, quotas and replicas. Returns the zone of times, too."""
        zone = _zone(self.timezone)
        first, last = _moment("--from", self.since, zone), _moment("--to", self.until, zone)
        is_empty = first is not None and last is not None and last <= first
        _check_order(self.since, self.until, is_empty=is_empty)
        from weir.pipeline.page.read import read_page

        with tables_at("--input", self.source, first, last) as folder:
            return read_page(folder, first, last, top, zone), zone


@app.callback()
def _report() -> None:
    pass


def build(options: BuildOptions) -> int:
    """Replace the tables of each day from --from to before --to, as Parquet. Spark needs Java, DuckDB does not."""
    from weir.pipeline.day_report import nothing_came
    from weir.pipeline.days import parse_hour
    from weir.pipeline.errors import BuildError

    try:
        days = parse_hour(options.first), parse_hour(options.until)
    except BuildError as error:
        raise CommandError(f"{error}.", WRONG_USAGE) from error
    _check_order(options.first, options.until, is_empty=days[1] <= days[0])
    kept = parsed("--keep", parse_duration, options.keep)
    more = {"allow_empty": options.allow_empty, "keep": kept and timedelta(seconds=kept)}
    reports = []
    try:
        with _job(options, *days) as job:
            for report in job(*days, **more):
                typer.echo(json.dumps(asdict(report), default=str) if options.as_json else report.sentence())
                reports.append(report)
    except BuildError as error:
        raise CommandError(f"{error}.") from error
    if refused := sum(report.is_refused for report in reports):
        raise CommandError(
            f"{refused} of the days have lost the samples of hours, so their tables stay as they were "
            "(--allow-empty replaces them)."
        )
    if not options.allow_empty and (sentence := nothing_came(reports)):
        raise CommandError(f"{sentence}.")
    return DONE


@contextlib.contextmanager
def _job(options: BuildOptions, first: datetime, until: datetime) -> Iterator[Callable[..., Iterator[DayReport]]]:
    """Yield the job of the engine that was asked for, or that fits: it is called with the days."""
    if options.engine not in ENGINES:
        raise CommandError(f"--engine: {options.engine!r} is none of {', '.join(ENGINES)}.", WRONG_USAGE)
    source, output = _folder_here(options.source), _folder_here(options.output)
    if source and output and not options.master and options.engine != "spark":
        # a path without a scheme may be of another file system, which Spark's settings name
        is_here = find_spec("duckdb") and (source.exists() or not find_spec("pyspark"))
        if options.engine == "duckdb" or (is_here and _bytes_of(source, first, until) <= MOST_BYTES):
            yield partial(_module("weir.pipeline.duck.build", "DuckDB", "history").build, source, output)
            return
    if options.engine == "duckdb":
        sentence = "--engine: DuckDB builds from a folder of this machine into another, without --master."
        raise CommandError(sentence, WRONG_USAGE)
    job = _module("weir.pipeline.build", "PySpark", "pipeline")
    from weir.pipeline.errors import BuildError
    from weir.pipeline.read import client_properties

    try:
        kafka = client_properties(options.command_config)
    except BuildError as error:
        raise CommandError(f"{error}.", WRONG_USAGE) from error
    spark = start_spark(options.master or "local[*]", LAUNCH_SETTINGS)
    try:
        yield partial(job.build, spark, options.source, options.output, kafka=kafka)
    finally:
        job.stop(spark)


def _module(name: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"building tables needs {what} ({error.name} is not installed): pip install 'kafka-weir[{extra}]'."
        ) from error


def _folder_here(address: str) -> Path | None:
    """Return the folder of this machine that an address names; None for another file system's, or a topic."""
    path = address.removeprefix("file://")
    return None if "://" in path else Path(path)


def html(
    tables: TablesOptions,
    output: Annotated[Path, typer.Option("--output", help="File of the page.")],
    top: Annotated[
        int, typer.Option(min=1, max=MOST_SHOWN, help="How many brokers, partitions, quotas, replicas.")
    ] = 20,
) -> int:
    """Write one page with rates, quotas, moves and lag, which fetches nothing. Needs DuckDB; Spark for s3a:// or hdfs://."""
    if output.is_dir() or not output.parent.is_dir():
        raise CommandError(f"--output: {output} is no file in a folder that exists.", WRONG_USAGE)
    contents, zone = tables.read(top)
    from weir.pipeline.page.write import page_of, summary

    _write(output, page_of(contents, zone))
    typer.echo(f"{output}: {summary(contents, zone)}")
    return DONE


def show(
    tables: TablesOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Print five answers: were clients protected, which move hurt, when it ends, who holds it up, may the rate rise."""
    contents, zone = tables.read(MOST_SHOWN)
    from weir.pipeline.page.answers import answers, as_text
    from weir.pipeline.page.write import summary

    if as_json:
        found = contents.verdict
        figures = None if found is None else {**asdict(found), "answers": [asdict(of) for of in answers(found, zone)]}
        typer.echo(json.dumps(figures, default=str))
        return DONE
    typer.echo(textwrap.fill(summary(contents, zone), 80))
    if contents.verdict is not None:
        typer.echo(f"\n{as_text(answers(contents.verdict, zone))}")
    return DONE


def _check_order(since: str | None, until: str | None, *, is_empty: bool) -> None:
    if is_empty:
        raise CommandError(f"--to: there is nothing from {since} to before {until}.", WRONG_USAGE)


def _write(file: Path, page: str) -> None:
    """Write the page to a temporary file and rename it, so that nobody sees half of it."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        try:
            unfinished.write_text(page, encoding="utf-8")
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from error


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        sentence = f"--timezone: {name!r} is not a time zone: give it as in UTC or Europe/Berlin."
        raise CommandError(sentence, WRONG_USAGE) from error


def _moment(option: str, text: str | None, zone: tzinfo) -> datetime | None:
    """Return the given time, or the midnight of a given day; in `zone` unless it names its own."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        sentence = f"{option}: {text!r} is not a time: give it as in 2026-11-02 or 2026-11-02T06:00."
        raise CommandError(sentence, WRONG_USAGE) from error
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise CommandError(f"{option}: {text!r} is not in the years {FIRST_YEAR} to {LAST_YEAR}.", WRONG_USAGE)
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def _bytes_of(source: Path, first: datetime, until: datetime) -> int:
    """Return how many bytes of samples there are of the largest of the days, or of all where no folder names a day."""
    days = [source / f"date={first.date() + timedelta(days=number)}" for number in range((until - first).days + 1)]
    folders = days if any(source.glob("date=*")) else [source]
    return max(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in folders)


app.command("build")(with_options(build))
app.command("html")(with_options(html))
app.command("show")(with_options(show))
