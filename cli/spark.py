# SPDX-License-Identifier: Apache-2.0
"""A Spark that a command starts itself."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.errors import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAUNCH_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # faster than G1; the user's extraJavaOptions come after it
    "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC",
}
"""Settings for a Spark that weir starts itself."""


def start_spark(master: str, launch: Mapping[str, str]) -> SparkSession:
    from weir.pipeline.errors import BuildError
    from weir.pipeline.session import open_session

    try:
        with _without_stderr():
            spark = open_session(master, launch)
    except BuildError as error:
        raise CommandError(f"{error}.") from error
    # errors are told in a sentence of weir's own
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    return spark


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Py4J tells the root logger, in any of its threads, that a connection to a JVM which was killed has failed."""
    return Path(record.pathname).parent.name != "py4j"


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Keep to itself what a process that is started here says on stderr, then and later.

    Spark and Java greet with lines of which cron would make a mail. Where nothing starts, they are shown.
    """
    with tempfile.TemporaryFile() as said, open(os.dup(2), "wb") as stderr:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            shutil.copyfileobj(said, stderr)
            raise
        finally:
            os.dup2(stderr.fileno(), 2)
