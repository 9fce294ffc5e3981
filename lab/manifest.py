# SPDX-License-Identifier: Apache-2.0
"""Writes the lists of jars of Kafka 4.0 or newer: `python -m weir.lab.manifest 4.5.0 connect-4.5.0`.

Maven resolves what brokers and tools depend on into `jars-4.5.0.sha256`, and what Connect needs beside that into
`jars-connect-4.5.0.sha256`. The checksums are of what was fetched: look at what changed before it is committed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from weir.lab.jars import HERE, MAVEN_PLUGIN

_KAFKA: Final = "org.apache.kafka"
_CONNECT: Final = ("connect-runtime", "connect-file", "connect-mirror")
_OF_CONNECT: Final = (
    (_KAFKA, "connect-runtime"),
    ("com.fasterxml.jackson.jakarta.rs", "jackson-jakarta-rs-json-provider"),
)
"""What kafka-tools depends on, and its tools that the lab runs do not use."""

_SLF4J: Final = "1.7.36"
"""Of slf4j-simple, which goes with Kafka's slf4j-api."""

Artifact = tuple[str, str, str]
"""Group, name and version."""


def main() -> int:
    """Write the lists that the command line names."""
    for name in sys.argv[1:]:
        version = name.removeprefix("connect-")
        kafka = [(_KAFKA, "kafka_2.13", version), (_KAFKA, "kafka-tools", version)]
        broker = [*kafka, ("org.slf4j", "slf4j-simple", _SLF4J)]
        jars = _resolved(broker, without=_OF_CONNECT)
        if name != version:
            jars = _resolved([*broker, *((_KAFKA, part, version) for part in _CONNECT)]) - jars
        file = HERE / f"jars-{name}.sha256"
        file.write_text("".join(f"{sha256}  {path}\n" for path, sha256 in sorted(jars)))
        print(f"{file.name}: {len(jars)} jars")
    return 0


def _resolved(artifacts: list[Artifact], without: tuple[tuple[str, str], ...] = ()) -> set[tuple[str, str]]:
    """Return (path, SHA-256) of these artifacts' jars and of all that they need at run time."""
    excluded = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{name}</artifactId></exclusion>" for group, name in without
    )
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"<exclusions>{excluded}</exclusions></dependency>"
        for group, name, version in artifacts
    )
    with tempfile.TemporaryDirectory() as folder:
        pom, jars = Path(folder) / "pom.xml", Path(folder) / "jars"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>lab</groupId>'
            f"<artifactId>jars</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
        )
        copy = [f"{MAVEN_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true"]
        subprocess.run(["mvn", "-q", "-B", "-f", pom, *copy, f"-DoutputDirectory={jars}"], check=True)
        return {
            (str(jar.relative_to(jars)), hashlib.sha256(jar.read_bytes()).hexdigest()) for jar in jars.rglob("*.jar")
        }


if __name__ == "__main__":
    sys.exit(main())
