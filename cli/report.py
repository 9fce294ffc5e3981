"""`weir report`: builds tables from exported samples, and a page or five answers from the tables."""

from __future__ import annotations

import importlib
import json
import os
import textwrap
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.plan_inputs import parsed
from weir.cli.quantities import parse_duration
from weir.cli.spark import FEW_BYTES, LAUNCH_SETTINGS, LAUNCH_SETTINGS_FOR_FEW, start_spark
from weir.cli.tables import tables_at

if TYPE_CHECKING:
    from weir.pipeline.page.contents import Contents

MOST_SHOWN = 100
FIRST_YEAR, LAST_YEAR = 1971, 2999
"""The years of times that a page can be asked for. Others are slips, and an axis could leave Python's calendar."""

app = typer.Typer(
    help="Build tables from the samples that sidecars export, and a page or five answers from the tables."
)

_Tables = Annotated[str, typer.Option("--input", help="Folder of the tables, here or on a file system of Hadoop's.")]
_Since = Annotated[
    str | None, typer.Option("--from", help="First day or time, as 2026-11-02 or 2026-11-02T06:00; else all.")
]
_Until = Annotated[str | None, typer.Option("--to", help="The day or time after the last.")]
_Zone = Annotated[str, typer.Option("--timezone", help="Zone of all times, as Europe/Berlin.")]


@app.callback()
def _report() -> None:
    pass


@app.command("build")
def build(
    source: Annotated[str, typer.Option("--input", help="Hadoop path of the samples, or kafka://host:port/topic.")],
    output: Annotated[str, typer.Option("--output", help="Hadoop path of the tables.")],
    first: Annotated[str, typer.Option("--from", help="First day or hour (UTC), as 2026-11-02 or 2026-11-02T13.")],
    until: Annotated[str, typer.Option("--to", help="The day or hour after the last one.")],
    master: Annotated[str, typer.Option("--master", help="Spark's master.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Take it that no sample of a day is there; replace its tables.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option("--keep", help="Delete the tables of days that are older before --to, as 90d.")
    ] = None,
    command_config: Annotated[
        Path | None, typer.Option("--command-config", help="Kafka's client properties, for kafka://.")
    ] = None,
) -> None:
    """Replace the tables of each day from --from to before --to, as Parquet. Needs Java (17 is tested)."""
    try:
        read = importlib.import_module("weir.pipeline.read")
        job = importlib.import_module("weir.pipeline.build")
        hours = importlib.import_module("weir.pipeline.days")
        day_report = importlib.import_module("weir.pipeline.day_report")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"building tables needs PySpark ({error.name} is not installed): pip install 'kafka-weir[pipeline]'."
        ) from error
    from weir.pipeline.errors import BuildError

    try:
        days = hours.parse_hour(first), hours.parse_hour(until)
        kafka = read.client_properties(command_config)
    except BuildError as error:
        raise CommandError(f"{error}.", WRONG_USAGE) from error
    _check_order(first, until, is_empty=days[1] <= days[0])
    kept = parsed("--keep", parse_duration, keep)
    spark = start_spark(master, LAUNCH_SETTINGS_FOR_FEW if _is_small(source, *days) else LAUNCH_SETTINGS)
    reports = []
    try:
        for report in job.build(
            spark,
            source,
            output,
            *days,
            allow_empty=allow_empty,
            keep=kept and timedelta(seconds=kept),
            kafka=kafka,
        ):
            typer.echo(json.dumps(asdict(report), default=str) if as_json else report.sentence())
            reports.append(report)
    except BuildError as error:
        raise CommandError(f"{error}.") from error
    finally:
        job.stop(spark)
    if refused := sum(report.is_refused for report in reports):
        raise CommandError(
            f"{refused} of the days have lost the samples of hours, so their tables stay as they were "
            "(--allow-empty replaces them)."
        )
    if not allow_empty and (sentence := day_report.nothing_came(reports)):
        raise CommandError(f"{sentence}.")


@app.command("html")
def html(
    source: _Tables,
    output: Annotated[Path, typer.Option("--output", help="File of the page.")],
    since: _Since = None,
    until: _Until = None,
    timezone: _Zone = "UTC",
    top: Annotated[
        int, typer.Option(min=1, max=MOST_SHOWN, help="How many brokers, partitions, quotas, replicas.")
    ] = 20,
) -> None:
    """Write one page with rates, quotas, moves and lag, which fetches nothing. Needs DuckDB; Spark for s3a:// or hdfs://."""
    if output.is_dir() or not output.parent.is_dir():
        raise CommandError(f"--output: {output} is no file in a folder that exists.", WRONG_USAGE)
    zone = _zone(timezone)
    contents = _contents(source, since, until, zone, top)
    from weir.pipeline.page.write import page_of, summary

    _write(output, page_of(contents, zone))
    typer.echo(f"{output}: {summary(contents, zone)}")


@app.command("show")
def show(
    source: _Tables,
    since: _Since = None,
    until: _Until = None,
    timezone: _Zone = "UTC",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Print five answers: were clients protected, which move hurt, when it ends, who holds it up, may the rate rise."""
    zone = _zone(timezone)
    contents = _contents(source, since, until, zone, MOST_SHOWN)
    from weir.pipeline.page.answers import answers, as_text
    from weir.pipeline.page.write import summary

    if as_json:
        found = contents.verdict
        figures = None if found is None else {**asdict(found), "answers": [asdict(of) for of in answers(found, zone)]}
        typer.echo(json.dumps(figures, default=str))
        return
    typer.echo(textwrap.fill(summary(contents, zone), 80))
    if contents.verdict is not None:
        typer.echo(f"\n{as_text(answers(contents.verdict, zone))}")


def _contents(source: str, since: str | None, until: str | None, zone: tzinfo, top: int) -> Contents:
    first, last = _moment("--from", since, zone), _moment("--to", until, zone)
    _check_order(since, until, is_empty=first is not None and last is not None and last <= first)
    from weir.pipeline.page.read import read_page

    with tables_at("--input", source, first, last) as folder:
        return read_page(folder, first, last, top, zone)


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


def _is_small(source: str, first: datetime, until: datetime) -> bool:
    """Whether a folder of this machine has few samples of the days; of other inputs that is not known."""
    folder = Path(source.removeprefix("file://"))
    count = (until - first).days + 2
    days = [folder / f"date={first.date() + timedelta(days=number)}" for number in range(count)]
    try:
        sizes = [file.stat().st_size for day in days for file in day.rglob("*.jsonl*")]
    except OSError:  # one was moved away meanwhile
        return False
    return bool(sizes) and sum(sizes) <= FEW_BYTES
