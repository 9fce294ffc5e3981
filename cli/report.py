"""`weir report`: tables from exported samples."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import WRONG_USAGE, CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(help="Build tables from the samples that sidecars export.", no_args_is_help=True)


@app.callback()
def _report() -> None:
    pass


@app.command("build")
def build(
    source: Annotated[str, typer.Option("--input", help="Hadoop path of the samples, or kafka://host:port/topic.")],
    output: Annotated[str, typer.Option("--output", help="Hadoop path of the tables.")],
    first: Annotated[str, typer.Option("--from", help="First day (UTC), as 2026-11-02.")],
    until: Annotated[str, typer.Option("--to", help="The day behind the last one.")],
    master: Annotated[str, typer.Option("--master", help="Spark's master.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Replace the tables of the days from --from to before --to, as Parquet. Needs Java 17."""
    try:
        job = importlib.import_module("pipeline.build")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"building tables needs PySpark ({error.name} is not installed): pip install 'kafka-weir[pipeline]'."
        ) from error
    from pipeline.errors import BuildError

    try:
        days = job.parse_day(first), job.parse_day(until)
    except BuildError as error:
        raise CommandError(f"{error}.", WRONG_USAGE) from error
    spark = _session(master)
    try:
        for report in job.build(spark, source, output, *days):
            typer.echo(json.dumps(asdict(report), default=str) if as_json else report.sentence())
    except BuildError as error:
        raise CommandError(f"{error}.") from error
    finally:
        spark.stop()


def _session(master: str) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return (
            SparkSession.builder.master(master)
            .appName("weir report build")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
    except (PySparkException, OSError) as error:
        raise CommandError(f"Spark does not start: {str(error).splitlines()[0]}.") from error
