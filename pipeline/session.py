# SPDX-License-Identifier: Apache-2.0
"""Spark's session, with the settings that the job needs. A setting that the user has made stays as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from weir.pipeline.errors import BuildError
from weir.pipeline.spark_errors import SPARK_ERRORS, first_line

Settings = dict[str, bool | float | int | str | None]

SHUFFLE_TASKS: Final = "spark.sql.shuffle.partitions"
FILE_TASKS: Final = "spark.sql.files.minPartitionNum"

SPARK_SETTINGS: Final[Settings] = {
    # the job compiles more than Spark's default of 100 pieces of code, and uses them again for the next day
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Spark 4 notes for each column of each step the line that has asked for it, which takes as long as the step.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
_JAVA_NAMES: Final = ("org.apache.spark.sql.functions", "org.apache.spark.api.python.PythonUtils")
# On one machine nobody else has to reach the driver and its blocks, which ask for no password. Spark's default is the
# address of a network.
LOOPBACK_SETTINGS: Final[Settings] = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# For one machine with few cores. Spark's default of 200 shuffle partitions would take many rounds of tasks. A few large
# input files would give its cores shares of unequal size.
ONE_MACHINE_SETTINGS: Final[Settings] = {
    SHUFFLE_TASKS: "16",
    FILE_TASKS: "16",
    # Some tasks read rows kept on this machine, others a remote file system. By default Spark holds the latter back for
    # a while, in search of a machine that has their file. With a local master that wait never ends.
    "spark.locality.wait": "0s",
    # Hadoop starts a process, chmod, for each file and folder that it makes on this machine. So what a task has written
    # is moved once, and no table has a file that says that it is written.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def open_session(master: str | None = None, launch: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session, on `master` unless spark-submit has named one.

    `launch` has settings for a JVM that is not running yet; PYSPARK_SUBMIT_ARGS overrides them. Raises BuildError.
    """
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise BuildError(
            "the job does not run by Spark Connect: unset SPARK_REMOTE and name a master (--master, or spark-submit)"
        )
    try:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list((launch or {}).items())))
        made = dict(SparkConf().getAll())
        on = master or made.get("spark.master", "")
        settings = SPARK_SETTINGS | (LOOPBACK_SETTINGS | ONE_MACHINE_SETTINGS if on.startswith("local") else {})
        builder = SparkSession.builder.appName("weir report build")
        builder = builder.config(map={name: value for name, value in settings.items() if name not in made})
        spark = (builder.master(master) if master else builder).getOrCreate()
        if on.startswith("local"):
            # a file of checksums beside each file would take a process more
            files = spark.sparkContext._jvm.org.apache.hadoop.fs.FileSystem  # type: ignore[union-attr]
            files.getLocal(spark.sparkContext._jsc.hadoopConfiguration()).setWriteChecksum(False)
        remember_names(spark)
        return spark
    except (*SPARK_ERRORS, OSError) as error:
        raise BuildError(f"Spark does not start: {first_line(error)}") from error


def remember_names(spark: SparkSession) -> None:
    """Keep what the names stand for that PySpark asks Java for with each column.

    Java would look for such a class in each of Spark's 300 archives, and in each package that it may be of.
    """
    names = vars(spark.sparkContext._jvm)
    for name in _JAVA_NAMES:
        names[name] = names[name.rpartition(".")[2]] = getattr(spark.sparkContext._jvm, name)


@contextlib.contextmanager
def as_set(spark: SparkSession, settings: Mapping[str, int | str]) -> Iterator[None]:
    """Have Spark's SQL run with these settings until the block ends."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        with contextlib.suppress(*SPARK_ERRORS):  # Spark may be gone, and what ended it says more
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)
