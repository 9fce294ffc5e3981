# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the small programs that drive Kafka clients of other languages: `client`, then what it is to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from weir.lab import jars
from weir.lab.java import java_command

_HERE: Final = Path(__file__).parent
_BUILD_SECONDS: Final = 600

LANGUAGES: Final[Mapping[str, str]] = {
    "franz-go": "go",
    "sarama": "go",
    "kafka-go": "go",
    "kafkajs": "node",
    "@platformatic/kafka": "node",
    "librdkafka": "python",
    "kafka-python": "python",
    "aiokafka": "python",
    "java": "java",
    "rskafka": "rust",
}
"""The clients, and what their program is written in."""


@dataclass(frozen=True)
class Outcome:
    """What a client did. `errors` is what it raised, or logged as a warning or worse."""

    records: int
    distinct: int
    arrivals: Mapping[str, int]
    """Records by hundredths of a second since its start."""
    errors: list[str]
    heartbeats: list[tuple[float, float]] = field(default_factory=list)
    """When they were sent, and answered, on the wire (seconds since its start): sarama's beside its producer."""

    def rate(self, together: float) -> float:
        """Return records/s from the second answer to the last, without what the last one brought.

        What comes within `together` seconds is one answer's. What the first one brought may have been noted late, as
        its client was starting.
        """
        lumps: list[list[int]] = []  # [hundredth of a second in which it began, in which it ended, records]
        for at, records in sorted((int(time), records) for time, records in self.arrivals.items()):
            if lumps and at - lumps[-1][0] <= 100 * together:
                lumps[-1][1:] = [at, lumps[-1][2] + records]
            else:
                lumps.append([at, at, records])
        assert len(lumps) > 2, lumps
        return 100 * sum(records for *_, records in lumps[1:-1]) / max(1, lumps[-1][0] - lumps[1][0])


class Drivers:
    """The programs, each built when it is first asked for, in a folder that is thrown away."""

    def __init__(self, folder: Path, kafka: str) -> None:
        self._folder = folder
        self._kafka = kafka

    def run(self, client: str, job: Mapping[str, Any]) -> Outcome:
        """Have a client do a job: `role`, `bootstrap`, `topic`, `client_id`, `count`, `seconds` and so on."""
        command, cwd = self.command(client, {**job, "client": client})
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=job["seconds"] + 60, check=False
        )
        lines = done.stdout.strip().splitlines()
        assert lines, f"{client} ended with {done.returncode}: {done.stderr[-2000:]}"
        found = json.loads(lines[-1])
        logged = [line for line in done.stderr.splitlines() if " WARN " in line or " ERROR " in line]
        heartbeats = [(sent, answered) for sent, answered in found.get("heartbeats") or []]
        return Outcome(found["records"], found["distinct"], found["arrivals"], found["errors"] + logged, heartbeats)

    def command(self, client: str, job: Mapping[str, Any]) -> tuple[list[str], Path]:
        """Return the command that runs a job, and where. Skips the test where the language's tools are missing."""
        match LANGUAGES[client]:
            case "go":
                return [str(self._go), json.dumps(job)], self._folder
            case "node":
                return ["node", "main.mjs", json.dumps(job)], self._node
            case "rust":
                return [str(self._rust), json.dumps(job)], self._folder
            case "java":
                arguments = [f"{name}={value}" for name, value in job.items()]
                classes = [*jars.classpath(self._kafka), self._java]
                return java_command(classes, "ForeignClient", arguments, log_level="warn"), self._folder
            case _:
                return [sys.executable, "-m", "tests.clients.python_client", json.dumps(job)], _HERE.parents[1]

    @cached_property
    def _go(self) -> Path:
        _needs("go")
        program = self._folder / "clients"
        _build(["go", "build", "-o", str(program), "."], _HERE / "go")
        return program

    @cached_property
    def _node(self) -> Path:
        _needs("npm")
        home = self._folder / "node"
        shutil.copytree(_HERE / "node", home)
        _build(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], home)
        return home

    @cached_property
    def _rust(self) -> Path:
        _needs("cargo")
        target = _HERE.parents[1] / ".cache" / "clients-rust"  # kept, and cargo locks it: it takes minutes
        _build(["cargo", "build", "--locked", "--target-dir", str(target)], _HERE / "rust")
        return target / "debug" / "clients"

    @cached_property
    def _java(self) -> Path:
        _needs("javac")
        classpath = os.pathsep.join(map(str, jars.classpath(self._kafka)))
        _build(["javac", "-cp", classpath, "-d", str(self._folder), "ForeignClient.java"], _HERE)
        return self._folder


def _needs(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: clients of its language are left out")


def _build(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} could not build its clients: {(done.stderr or done.stdout)[-500:]}")
