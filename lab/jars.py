# SPDX-License-Identifier: Apache-2.0
"""Kafka's jars: fetched once with a package client, and checked against a committed list.

`jars-<version>.sha256` lists every jar as `<SHA-256>  <path in Maven's repository layout>`: what to fetch, and what has
to arrive. `sha256sum -c` can read it too. Dependencies are not resolved, so no jar outside the list is fetched, and the
bytes are the same whether Maven or Ivy (which comes with PySpark) has fetched them. `weir.lab.manifest` writes the
lists.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from weir.lab.errors import JarsMissing
from weir.lab.java import find_java

HERE = Path(__file__).resolve().parent
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_FETCH_SECONDS = 900  # enough for a slow mirror


class Jar(NamedTuple):
    """One line of a manifest: `path` is relative to the jar folder, in Maven's repository layout."""

    path: str
    sha256: str

    @property
    def coordinates(self) -> tuple[str, str, str]:
        """(group, artifact, version), as package clients name it."""
        *group, artifact, version, _name = self.path.split("/")
        return ".".join(group), artifact, version


def project_cache() -> Path:
    """Return the folder for what is fetched: WEIR_CACHE, else the checkout's `.cache`, else the user's cache folder."""
    if named := os.environ.get("WEIR_CACHE"):
        return Path(named)
    if (HERE.parent / "pyproject.toml").is_file():
        return HERE.parent / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"


def read_manifest(version: str, folder: Path = HERE) -> list[Jar]:
    """Return the jars of a Kafka version.

    Raises JarsMissing for a version without a manifest or a line that is not one.
    """
    file = folder / f"jars-{version}.sha256"
    if not file.is_file():
        known = ", ".join(sorted(name.stem.removeprefix("jars-") for name in folder.glob("jars-[0-9]*.sha256")))
        raise JarsMissing(version, [], f"there is no list of its jars; the lab knows {known}.")
    jars = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        sha256, _, path = line.partition("  ")
        if len(sha256) != 64 or len(path.split("/")) < 4 or not path.endswith(".jar") or ".." in path:
            raise JarsMissing(
                version, [], f"line {number} of {file} is not '<SHA-256>  <group>/<artifact>/<version>/<jar>'."
            )
        jars.append(Jar(path, sha256))
    return jars


def classpath(version: str) -> list[Path]:
    """Return a version's jars, fetched and checked first when they are not there yet."""
    return ensure(version)


def class_archive(version: str) -> Path:
    """Return where a version's archive of loaded classes is, or would be (lab.prepare makes it)."""
    return project_cache() / "jars" / f"{version}.jsa"


def kraft_features(version: str, level: str | None) -> Path:
    """Return the folder where the features of a KRaft cluster of that level are kept, or would be."""
    return project_cache() / "jars" / f"{version}-{level or 'newest'}.features"


def keep(folder: Path, pattern: str, kept: Path) -> None:
    """Keep copies of a folder's files as another folder, whole or not at all: other processes may keep them, too."""
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        copy = Path(scratch) / kept.name
        for file in folder.rglob(pattern):
            target = copy / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        with suppress(OSError):  # another process was first
            copy.rename(kept)


def ensure(version: str, *, cache: Path | None = None, report: Callable[[str], None] | None = None) -> list[Path]:
    """Fetch the jars of `version` that are missing, check all of them, and return their paths.

    A stamp file notes that this manifest was checked: starting a broker then does not hash 50 MB again. Raises
    JavaMissing, or JarsMissing with what to do about it.
    """
    tell = report or (lambda line: print(line, file=sys.stderr, flush=True))
    jars = read_manifest(version)
    folder = (cache or project_cache()) / "jars"
    stamp = folder / f"{version}.checked"
    paths = [folder / jar.path for jar in jars]
    mark = hashlib.sha256(repr(jars).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == mark and all(path.is_file() for path in paths):
        return paths
    missing = wrong_jars(jars, folder)
    if missing:
        fetch(version, missing, folder, tell)
        if wrong := wrong_jars(jars, folder):
            raise JarsMissing(
                version,
                [jar.path for jar in wrong],
                f"{len(wrong)} jar(s) are not what lab/jars-{version}.sha256 lists, {wrong[0].path} first: the "
                "registry or its mirror gave other bytes than were published. Check it, then try again.",
            )
    stamp.write_text(mark)
    tell(f"Kafka {version}: {len(jars)} jars are there and match their checksums.")
    return paths


def wrong_jars(jars: list[Jar], folder: Path) -> list[Jar]:
    """Return the jars that are missing in `folder` or whose bytes differ from the manifest."""
    wrong = []
    for jar in jars:
        try:
            with (folder / jar.path).open("rb") as file:
                matches = hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
        except FileNotFoundError:
            matches = False
        if not matches:
            wrong.append(jar)
    return wrong


def fetch(version: str, jars: list[Jar], folder: Path, tell: Callable[[str], None]) -> None:
    """Fetch `jars` into `folder`: with Maven if it is there, or with PySpark's Ivy if it is not or fails."""
    folder.mkdir(parents=True, exist_ok=True)
    fetchers = [("Maven", command) for command in [shutil.which("mvn")] if command] + [
        ("Ivy", str(jar)) for jar in [ivy_jar()] if jar
    ]
    if not fetchers:
        raise JarsMissing(
            version,
            [jar.path for jar in jars],
            "neither Maven nor PySpark (which brings Ivy along) is installed to fetch its jars: install Maven, or"
            " 'kafka-weir[demo]'.",
        )
    said = ""
    for name, tool in fetchers:
        # Not in /tmp: the move at the end has to be a rename.
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
            work = Path(scratch)
            command = _maven(work, tool, jars) if name == "Maven" else _ivy(work, tool, jars)
            said = _run(command, work, f"Kafka {version}: fetching with {name}", len(jars), tell)
            for jar in jars:
                if (work / "jars" / jar.path).is_file():
                    (folder / jar.path).parent.mkdir(parents=True, exist_ok=True)
                    (work / "jars" / jar.path).replace(folder / jar.path)
        if all((folder / jar.path).is_file() for jar in jars):
            return
    raise JarsMissing(
        version,
        [jar.path for jar in jars],
        f"its jars could not be fetched with {' or '.join(name for name, _ in fetchers)}: check that the registry "
        f"can be reached from here (proxy, mirror settings), then try again. The last lines were:\n{said}",
    )


def ivy_jar() -> Path | None:
    """Return the Ivy jar inside an installed PySpark, or None."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = sorted(Path(spec.submodule_search_locations[0]).glob("jars/ivy-*.jar"))
    return found[-1] if found else None


def _maven(work: Path, mvn: str, jars: list[Jar]) -> list[str]:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, artifact, version in (jar.coordinates for jar in jars)
    )
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>lab</groupId>'
        f"<artifactId>jars</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    copy = [
        f"{MAVEN_PLUGIN}:copy-dependencies",
        "-Dmdep.useRepositoryLayout=true",
        f"-DoutputDirectory={work / 'jars'}",
    ]
    return [mvn, "-q", "-B", "-f", str(work / "pom.xml"), *copy]


def _ivy(work: Path, ivy: str, jars: list[Jar]) -> list[str]:
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        ' conf="default->master" transitive="false"/>'
        for group, artifact, version in (jar.coordinates for jar in jars)
    )
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="lab" module="jars"/><configurations><conf name="default"/>'
        f"</configurations><dependencies>{dependencies}</dependencies></ivy-module>"
    )
    layout = work / "jars/[orgPath]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"
    settle = [
        "-cache",
        str(work / "cache"),
        "-ivy",
        str(work / "ivy.xml"),
        "-confs",
        "default",
        "-retrieve",
        str(layout),
    ]
    return [str(find_java()), "-jar", ivy, *settle]


def _run(command: list[str], work: Path, what: str, total: int, tell: Callable[[str], None]) -> str:
    """Run a package client, report every few seconds how many jars have come, and return the end of its output."""
    log = work / "log.txt"
    tell(f"{what}: {total} jars")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=work)
        deadline = time.monotonic() + _FETCH_SECONDS
        try:
            while process.poll() is None and time.monotonic() < deadline:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
                    continue
                # Ivy collects in its own cache first: the folder with more jars is the one to report.
                here = max(sum(1 for _ in (work / folder).rglob("*.jar")) for folder in ("jars", "cache"))
                tell(f"{what}: {min(here, total)} of {total}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-8:])
