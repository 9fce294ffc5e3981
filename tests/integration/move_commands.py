# SPDX-License-Identifier: Apache-2.0
"""`weir move` as people run it, against a cluster of the lab."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from weir.cli.main import main
from weir.lab.admin import LabAdmin
from weir.lab.cluster import Cluster
from weir.lab.sidecar import PROJECT
from weir.planning.assignment import Partition
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import format_reassignment

MB = 1_000_000
MOST_SECONDS = 120

WAITS = {
    "weir.control.plan_state.INFLOW_SECONDS": 0.1,
    "weir.control.move_execution.INFLOW_SECONDS": 0.1,
    "weir.control.move_following.GRACE_SECONDS": 0.0,
    "weir.control.move_throttling.GRACE_SECONDS": 0.0,
}
"""How long a command waits in a test for producers' records, and for what somebody else may begin: nobody does here."""


class MoveCommands:
    """Runs `weir move` on the plans in a folder."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.admin = LabAdmin(cluster.bootstrap_servers)

    @property
    def topic(self) -> str:
        """A topic's name for this test alone: with ZooKeeper a deleted one lives on for seconds."""
        return self.folder.name

    def plan(self, topic: str, replicas: Mapping[int, Sequence[int]], name: str = "plan") -> Path:
        """Write a plan, partition -> brokers."""
        path = self.folder / f"{name}.json"
        path.write_text(format_reassignment({Partition(topic, p): tuple(b) for p, b in replicas.items()}))
        return path

    def start(self, command: str, plan: Path | None = None, *more: str) -> subprocess.Popen[str]:
        """Begin a command in a process of its own, and do not wait for it."""
        return subprocess.Popen(
            [sys.executable, "-m", "weir", *self._words(command, plan, more)],
            cwd=PROJECT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, command: str, plan: Path | None = None, *more: str, status: int | None = 0) -> tuple[str, str]:
        """Run a command here, which has to end with `status` (None: 0 or 1). Return what it printed on both streams."""
        out, error = StringIO(), StringIO()
        with ExitStack() as stack:
            for name, seconds in WAITS.items():
                stack.enter_context(mock.patch(name, seconds))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(error))
            stack.enter_context(_ended_within(MOST_SECONDS))
            found = main(self._words(command, plan, more))
        allowed = {0, 1} if status is None else {status}
        assert found in allowed, f"{command}: {found}\n{out.getvalue()}\n{error.getvalue()}"
        return out.getvalue(), error.getvalue()

    def _words(self, command: str, plan: Path | None, more: Sequence[str]) -> list[str]:
        words = ["move", command, "--bootstrap-server", ",".join(self.cluster.bootstrap_servers), *more]
        return words if plan is None else [*words, "--reassignment-json-file", str(plan)]

    def throttles(self) -> Standing:
        """What is set in the cluster, of single brokers and topics."""
        topics = {partition.topic for partition in self.admin.partitions()}
        rates, lists = self.admin.own_throttles(self.admin.brokers(), topics)
        return Standing(
            {broker: own for broker, own in rates.items() if own}, {topic: own for topic, own in lists.items() if own}
        )

    def wait_for_end(self, seconds: float = 60) -> None:
        """Wait until nothing moves in the cluster."""
        self.admin.wait_for_reassignments(seconds)


@contextmanager
def _ended_within(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer, as Ctrl-C does."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def json_of(text: str) -> list[dict[str, object]]:
    """The JSON values that a command printed, one a line."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
