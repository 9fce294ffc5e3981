"""`weir report`: builds tables from exported samples, and a page or five answers from the tables."""

from __future__ import annotations

import importlib
import json
import os
import textwrap
from dataclasses import MISSING, asdict, dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from weir.cli.errors import DONE, WRONG_USAGE, CommandError
from weir.cli.options import option, parsed, with_options
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Which samples become tables, where, and by which Spark."""

    source: str = option("--input", None, "Hadoop path of the samples, or kafka://host:port/topic.", MISSING)
    output: str = option("--output", None, "Hadoop path of the tables.", MISSING)
    first: str = option("--from", None, "First day or hour (UTC), as 2026-11-02 or 2026-11-02T13.", MISSING)
    until: str = option("--to", None, "The day or hour after the last one.", MISSING)
    master: str = option("--master", None, "Spark's master.", "local[*]")
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
        days = hours.parse_hour(options.first), hours.parse_hour(options.until)
        kafka = read.client_properties(options.command_config)
    except BuildError as error:
        raise CommandError(f"{error}.", WRONG_USAGE) from error
    _check_order(options.first, options.until, is_empty=days[1] <= days[0])
    kept = parsed("--keep", parse_duration, options.keep)
    spark = start_spark(
        options.master, LAUNCH_SETTINGS_FOR_FEW if _is_small(options.source, *days) else LAUNCH_SETTINGS
    )
    reports = []
    try:
        for report in job.build(
            spark,
            options.source,
            options.output,
            *days,
            allow_empty=options.allow_empty,
            keep=kept and timedelta(seconds=kept),
            kafka=kafka,
        ):
            typer.echo(json.dumps(asdict(report), default=str) if options.as_json else report.sentence())
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
    if not options.allow_empty and (sentence := day_report.nothing_came(reports)):
        raise CommandError(f"{sentence}.")
    return DONE


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


app.command("build")(with_options(build))
app.command("html")(with_options(html))
app.command("show")(with_options(show))
