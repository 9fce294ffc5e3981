# SPDX-License-Identifier: Apache-2.0
"""Processes that benches start without a cluster: sidecars, peers, and HAProxy to compare with."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 60.0
"""A sidecar takes so long at most to read a file of 50,000 topics, on a busy machine."""


@contextlib.contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else what is asked to end would leave the process behind
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def calling(function: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that calls a function of a bench, such as `peers.serve`."""
    module, name = function.split(".")
    code = f"from bench.{module} import {name}; {name}{arguments!r}"
    with running(sys.executable, "-c", code) as process:
        yield process


def next_line(process: subprocess.Popen[bytes]) -> str:
    """Wait for the next line that a process prints, and return it. Raises ConnectionError when it has ended."""
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise ConnectionError(f"{process.args!r} ended early.")
    return line.decode().strip()


@contextlib.contextmanager
def serving(function: str, *arguments: object) -> Iterator[int]:
    """The port of a process that serves, and prints it first."""
    with calling(function, *arguments) as process:
        yield int(next_line(process))


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process's threads, exact to the nanosecond, as a round may be shorter than many clock ticks."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@dataclass(frozen=True, slots=True)
class Way:
    """A way to a broker: a name, the port to connect to, and the process in between, if any."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None

    def cpu_seconds(self) -> float:
        """The CPU time of the process so far."""
        return cpu_seconds(self.process.pid) if self.process is not None else 0.0

    def resident_mb(self, *, most: bool = False) -> float:
        """MB of memory that the process has now, or the most that it had."""
        if self.process is None:
            return 0.0
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:" if most else "VmRSS:")[1].split()[0]) * 1024 / 1e6


@dataclass(frozen=True, slots=True)
class Sidecar(Way):
    """A sidecar with a listener for each upstream: `port` is the first one's."""

    ports: Sequence[int] = field(default_factory=list)
    admin: int = 0

    def turns(self) -> tuple[float, float]:
        """ms of CPU that turns of a watched loop took since the last call: the 99th percentile and the longest."""
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR1)
        p99, longest = next_line(self.process).split()
        return float(p99), float(longest)

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def throttled(rate: int, topics: Iterable[bytes] = (b"t",)) -> str:
    """The [throttle] of a leader's sidecar: this rate (bytes/s) for all replicas of `topics`."""
    lists = "".join(
        f'[throttle.topics.{name.decode()}]\n"leader.replication.throttled.replicas" = "*"\n' for name in topics
    )
    return f'[throttle]\n"leader.replication.throttled.rate" = {rate}\n{lists}'


@contextlib.contextmanager
def sidecar(
    *upstreams: int,
    tables: str = "",
    admin: str = "",
    tree: Path | None = None,
    watched: bool = False,
    loop: str = "",
    name: str = "",
) -> Iterator[Sidecar]:
    """A leader's sidecar in a process of its own.

    `tables` is TOML behind the last [[ingress]], `admin` in [admin]. `tree` is another checkout to run; `watched`:
    turns of its loop can be asked for; `loop` names its event loop.
    """
    ports, admin_port = [free_port() for _ in upstreams], free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "weir.toml"
        listeners = "".join(
            f'[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
            for port, upstream in zip(ports, upstreams, strict=True)
        )
        config.write_text(
            f'broker_id = 1\n[admin]\nlisten = "127.0.0.1:{admin_port}"\n{admin}'
            f'[log]\nlevel = "error"\n{listeners}{tables}'
        )
        code = "from weir.cli.main import main; main()"
        if watched:
            code = f"import runpy; runpy.run_path({str(Path(__file__).with_name('watched_sidecar.py'))!r})['main']()"
        run = (sys.executable, "-c", code, "run", "--config", str(config))
        command = ("env", f"--chdir={tree or Path.cwd()}", *run)
        with running(*command, **({"WEIR_EVENT_LOOP": loop} if loop else {})) as process:
            for port in ports:
                wait_for(port)
            yield Sidecar(name or "weir", ports[0], process, ports, admin_port)


@contextlib.contextmanager
def haproxy(upstream: int, *, bind: str = "", server: str = "") -> Iterator[list[Way]]:
    """HAProxy with one thread in TCP mode, `bind` and `server` being what TLS takes; none where it is not installed."""
    program = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        yield []
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "haproxy.cfg"
        config.write_text(
            "global\n  nbthread 1\n  ssl-default-bind-options ssl-min-ver TLSv1.3\n"
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n  maxconn 8000\n"
            f"listen relay\n  bind 127.0.0.1:{port} {bind}\n  server broker 127.0.0.1:{upstream} {server}\n"
        )
        with running(program, "-f", str(config)) as process:
            wait_for(port)
            yield [Way("HAProxy", port, process)]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_for(port: int) -> None:
    """Return when something listens on `port`."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return
