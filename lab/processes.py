# SPDX-License-Identifier: Apache-2.0
"""Starts the lab's processes, each in a process group of its own with its output in a log file, and ends them all."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weir.lab.errors import PortTaken, ProcessFailed, Timeout

_POLL_SECONDS = 0.05
# Kafka and ZooKeeper ("Address already in use", "failed to bind to 127.0.0.1:9092"), and Python ("[Errno 98] ...
# address already in use").
_PORT_TAKEN = re.compile(r"address already in use|BindException|failed to bind to", re.IGNORECASE)
_ADDRESS = re.compile(r"127(?:\.\d+){3}['\", :]+(\d{4,5})")


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, or the empty string when there is none."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 300 * lines))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


class Supervisor:
    """Owns one lab's processes and its folder, and ends them together.

    A reaper, which outlives this program by a moment, ends them when this program cannot (SIGKILL).
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weir-lab-"))
        self.processes: list[Process] = []
        self._show = show
        reaper = Path(__file__).with_name("reaper.py")
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(reaper)], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self.note("folder", self.folder)

    def log(self, name: str) -> Path:
        """Return the log file for a process of this name."""
        return self.folder / "logs" / f"{name.replace(' ', '-')}.log"

    def note(self, order: str, argument: object) -> None:
        """Tell the reaper: `group` / `ended` with a process group's id, `folder` / `kept` with a path."""
        with suppress(BrokenPipeError, ValueError):
            print(order, argument, file=self._reaper.stdin, flush=True)

    def end(self, error: BaseException | None = None) -> None:
        """Kill every process and remove the folder. After a failure, keep the logs, and show where they are and why.

        Ctrl-C and sys.exit are no failures. May be called more than once.
        """
        if self._reaper.poll() is not None:
            return
        failed = error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))
        dead = [process for process in self.processes if process.pid and not process.alive and process.wait(0)]
        for process in self.processes:  # all at once, so that none complains of another's end
            process.send(signal.SIGKILL)
        for process in self.processes:
            process.kill()
        if failed:
            self._keep_logs(str(error), dead)
        if self._reaper.stdin:
            with suppress(BrokenPipeError):
                self._reaper.stdin.close()
        self._reaper.wait(timeout=60)  # it removes the folder, unless that is kept

    def _keep_logs(self, reason: str, dead: list[Process]) -> None:
        self.note("kept", self.folder)
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name != "logs":
                shutil.rmtree(entry, ignore_errors=True)
        self._show(f"lab: {reason}\nlab: the logs are kept in {self.folder / 'logs'}")
        for process in dead:
            # A ProcessFailed has the tail in its message already.
            if str(process.log) not in reason:
                self._show(
                    f"lab: {process.name} had ended with status {process.wait(0)}; its log ends:\n{tail(process.log)}"
                )


@dataclass(eq=False)
class Process:
    """One process of a lab: `name` for messages, `log` with all its output. It may be started again after it ended."""

    _supervisor: Supervisor
    name: str
    command: Sequence[str]
    log: Path
    _cwd: Path | None = None
    env: Mapping[str, str] | None = None
    _popen: subprocess.Popen[bytes] | None = None
    _started_at_byte: int = 0  # of the log: what an earlier run of the same broker wrote does not count

    def __post_init__(self) -> None:
        self._supervisor.processes.append(self)

    @property
    def pid(self) -> int:
        """Process id of the current or last run, 0 before the first."""
        return self._popen.pid if self._popen else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs now."""
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start the process; does not wait for it to be of use."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._started_at_byte = output.tell()
            self._popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=None if self.env is None else dict(self.env),
                start_new_session=True,  # Ctrl-C in a terminal goes to the lab, which then ends them in order
            )
        self._supervisor.note("group", self._popen.pid)

    def output(self) -> str:
        """Return what this run has written so far."""
        with self.log.open("rb") as file:
            file.seek(self._started_at_byte)
            return file.read().decode(errors="replace")

    def wait_for_line(self, pattern: str, seconds: float) -> None:
        """Wait until this run's output matches `pattern`.

        Raises ProcessFailed (PortTaken) when it ends first, or Timeout.
        """
        wanted = re.compile(pattern)
        deadline = time.monotonic() + seconds
        while True:
            ended = not self.alive  # looked at before the output, so that its last words are in it
            if wanted.search(self.output()):
                return
            if ended:
                raise self.failure(f"ended with status {self.wait(0)} before it was up.")
            if time.monotonic() > deadline:
                raise Timeout(f"the start of {self.name}", seconds, f"its log {self.log} ends:\n{tail(self.log)}")
            time.sleep(_POLL_SECONDS)

    def failure(self, reason: str) -> ProcessFailed:
        """Return the error for this process: PortTaken when its output says so, else ProcessFailed with `reason`."""
        for line in self.output().splitlines() if self.log.exists() else ():
            if _PORT_TAKEN.search(line):
                port = _ADDRESS.search(line)
                return PortTaken(self.name, int(port.group(1)) if port else 0, self.log, tail(self.log))
        return ProcessFailed(self.name, reason, self.log, tail(self.log))

    def wait(self, seconds: float) -> int:
        """Wait for the end and return the exit status (negative: the signal). Raises Timeout."""
        if self._popen is None:
            return 0
        try:
            status = self._popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Timeout(f"the end of {self.name}", seconds) from None
        self._supervisor.note("ended", self._popen.pid)
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole group (SIGTERM, SIGHUP, SIGSTOP, ...); nothing happens when it ended already."""
        if self._popen is not None and self._popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)

    def stop(self, seconds: float = 30) -> int:
        """Ask for an orderly end by SIGTERM, then kill what did not end within `seconds`. Returns the exit status."""
        self.send(signal.SIGTERM)
        with suppress(Timeout):
            return self.wait(seconds)
        return self.kill()

    def kill(self) -> int:
        """Kill the group at once, as when a machine fails, and return the exit status."""
        self.send(signal.SIGKILL)
        return self.wait(30)
