"""Spark's session, with the settings that the job is for: those of them that the user has not made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from pipeline.errors import SPARK_ERRORS, BuildError, first_line

Settings = dict[str, bool | float | int | str | None]

SPARK_SETTINGS: Final[Settings] = {
    "spark.sql.codegen.cache.maxEntries": "1000",  # the job has more than Spark's 100; the next day uses them again
}
# For few cores. Of Spark's 200 partitions there would be many turns, and of few large files unlike shares.
ONE_MACHINE_SETTINGS: Final[Settings] = {
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.files.minPartitionNum": "16",
    # Where some tasks are of kept rows and others of a remote file system, Spark would let the latter wait for a while
    # for a machine that has their file. With a local master nothing ends that while, and they would wait for ever.
    "spark.locality.wait": "0s",
}


def open_session(master: str | None = None, launch: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session, on `master` unless spark-submit has named one.

    `launch` is for a JVM that is yet to start; what the user says of the same in PYSPARK_SUBMIT_ARGS comes after it.
    BuildError says why there is none.
    """
    try:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list((launch or {}).items())))
        made = dict(SparkConf().getAll())
        on = master or made.get("spark.master", "")
        settings = SPARK_SETTINGS | (ONE_MACHINE_SETTINGS if on.startswith("local") else {})
        builder = SparkSession.builder.appName("weir report build")
        builder = builder.config(map={name: value for name, value in settings.items() if name not in made})
        return (builder.master(master) if master else builder).getOrCreate()
    except (*SPARK_ERRORS, OSError) as error:
        raise BuildError(f"Spark does not start: {first_line(error)}") from error
