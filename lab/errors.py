# SPDX-License-Identifier: Apache-2.0
"""Errors of the lab, as types. Each has its facts as fields, and one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path


class LabError(Exception):
    """The lab could not do what was asked. `str()` is one sentence, perhaps followed by the end of a log."""


class JavaMissing(LabError):
    """No usable Java was found.

    Fields: `found`, what was found instead (a version, or None when there is no `java` at all).
    """

    def __init__(self, needed: int, found: str | None = None) -> None:
        self.needed = needed
        self.found = found
        seen = f"only Java {found} was found" if found else "there is no java on PATH and JAVA_HOME does not name one"
        super().__init__(
            f"Kafka needs Java {needed} or newer, and {seen}: install it "
            f"(Debian: apt-get install openjdk-{needed}-jre-headless) or set JAVA_HOME."
        )


class JarsMissing(LabError):
    """Kafka's jars could not be fetched, or are not the ones that the committed manifest lists.

    Fields: `version` of Kafka, `jars` (names, relative to the jar folder) that are missing or differ.
    """

    def __init__(self, version: str, jars: list[str], reason: str) -> None:
        self.version = version
        self.jars = jars
        super().__init__(f"Kafka {version}: {reason}")


class ProcessFailed(LabError):
    """A broker, a ZooKeeper, a sidecar or a Java tool ended, or did not come up.

    Fields: `name`, `reason` (one sentence), `log` (the file it wrote), `tail` (the last lines of it).
    """

    def __init__(self, name: str, reason: str, log: Path, tail: str = "") -> None:
        self.name = name
        self.reason = reason
        self.log = log
        self.tail = tail
        super().__init__(f"{name}: {reason} Its log is {log}" + (f", and ends:\n{tail}" if tail else "."))


class PortTaken(ProcessFailed):
    """A process could not listen because another one took the port first. Field: `port` (0 when the log names none)."""

    def __init__(self, name: str, port: int, log: Path, tail: str = "") -> None:
        self.port = port
        super().__init__(name, f"port {port or 'it wanted'} was taken by another process.", log, tail)


class Timeout(LabError):
    """Something awaited did not happen in time. Fields: `what`, `seconds`."""

    def __init__(self, what: str, seconds: float, detail: str = "") -> None:
        self.what = what
        self.seconds = seconds
        super().__init__(f"{what} did not happen within {seconds:g} s{': ' + detail if detail else ''}.")


class BadSigns(LabError):
    """A broker's log holds a line that says a follower disliked an answer.

    Field: `lines`, each with its log and number.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__(f"{len(lines)} bad sign(s) in the brokers' logs:\n" + "\n".join(lines))
