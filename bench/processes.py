"""Processes that the benches start beside a cluster, or without one."""

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
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 20.0


@contextlib.contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else what is asked to end would leave the process behind
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def haproxy(port: int, upstream: int) -> Iterator[subprocess.Popen[bytes] | None]:
    """HAProxy in TCP mode from `port` to `upstream`, both on loopback; None where it is not installed."""
    program = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "haproxy.cfg"
        config.write_text(
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n  maxconn 8000\n"
            f"listen relay\n  bind 127.0.0.1:{port}\n  server broker 127.0.0.1:{upstream}\n"
        )
        with running(program, "-f", str(config)) as process:
            wait_for(port)
            yield process


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
