# SPDX-License-Identifier: Apache-2.0
"""Finds Java, and builds the command lines of Kafka's own classes."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from weir.lab.errors import JavaMissing

JAVA_NEEDED = 17  # Kafka 4's brokers and tools are compiled for 17

# A lab runs several JVMs on few cores, for minutes. The serial collector keeps their threads and memory few, and the
# first compiler alone halves what a broker's start and its first megabytes take. Without performance data a killed
# broker leaves no file in /tmp/hsperfdata.
_FLAGS = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
    "-Djava.awt.headless=true",
)

OPTIMIZED: Final = ("-XX:TieredStopAtLevel=4",)
"""Flags of brokers that run for long enough to be compiled well: those of a measurement."""

# slf4j-simple: one line an event, with its time.
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
    # As in Kafka's own logging configuration: 3.9 logs every request of a deprecated version, in full, at INFO.
    "-Dorg.slf4j.simpleLogger.log.kafka.request.logger=warn",
)


@functools.cache
def find_java() -> Path:
    """Return the `java` to use: JAVA_HOME's, else PATH's. Raises JavaMissing when there is none, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    named = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    found = named or shutil.which("java")
    if found is None:
        raise JavaMissing(JAVA_NEEDED)
    said = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    version = java_version(said)
    if version is None or version < JAVA_NEEDED:
        raise JavaMissing(JAVA_NEEDED, found=str(version) if version else "of an unknown version")
    return Path(found)


def java_version(said: str) -> int | None:
    """Return the feature release in what `java -version` prints: 17 of `"17.0.15"`, 8 of `"1.8.0_402"`, else None."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match.group(1)) if match else None


def java_command(
    classpath: Sequence[Path],
    main_class: str,
    arguments: Sequence[str] = (),
    *,
    heap_mb: int = 384,
    properties: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    class_archive: Path | None = None,
    log_level: str = "info",
) -> list[str]:
    """Return the command line that runs `main_class`; `properties` become -D settings, `heap_mb` is -Xmx in MiB."""
    return [
        str(find_java()),
        f"-Xmx{heap_mb}m",
        *_FLAGS,
        *([f"-XX:SharedArchiveFile={class_archive}"] if class_archive and class_archive.is_file() else []),
        *flags,
        *_LOGGING,
        f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}",
        *(f"-D{key}={value}" for key, value in (properties or {}).items()),
        "-cp",
        os.pathsep.join(map(str, classpath)),
        main_class,
        *arguments,
    ]
