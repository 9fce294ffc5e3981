"""What capturing needs of the machine, checked before anything is set."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from weir.proxy.capture.privileges import CAP_NET_ADMIN
from weir.proxy.capture.rules import MARK, MARK_MASK

_LEAST_KERNEL: Final = (5, 12)  # tables with an owner


class CaptureError(Exception):
    """Connections cannot be captured; the text says what to do, without a full stop."""


def check_machine(status: Path = Path("/proc/self/status"), release: str | None = None) -> None:
    """Check for the kernel, the privilege and the tools. Raises CaptureError."""
    release = os.uname().release if release is None else release
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if numbers < _LEAST_KERNEL:
        raise CaptureError(
            f"capture needs Linux 5.12 or newer, and this is {release}: with an older kernel the rules would outlive a"
            " sidecar that was killed; set [[ingress]] and [[egress]] instead"
        )
    if not _has_net_admin(status):
        raise CaptureError(
            "capture needs the capability CAP_NET_ADMIN: run weir as root, or give its service"
            " AmbientCapabilities=CAP_NET_ADMIN"
        )
    if shutil.which("ss") is None:
        raise CaptureError("capture needs the command ss: install iproute2")


def check_broker(port: int) -> None:
    """Check that something listens on the captured port, and that it is no sidecar's. Raises CaptureError."""
    said = _ss("-tlnHe", f"sport = :{port}")
    if not said.strip():
        raise CaptureError(f"capture.port: nothing listens on port {port} of this machine: give the broker's own port")
    marks = [int(mark, 16) for mark in re.findall(r"fwmark:(0x[0-9a-f]+)", said)]
    if any(mark & MARK_MASK == MARK for mark in marks):
        raise CaptureError(
            f"capture.port: what listens on port {port} carries weir's own mark, so its connections would pass beside"
            " weir: start the broker without it"
        )


def drop_connections(port: int, peers: list[str], *, incoming: bool, outgoing: bool) -> str | None:
    """Break the connections with brokers that stand, so that they are made anew; sidecars' own stay.

    Returns why it could not be done; None where it was.
    """
    ends = [end for end, wanted in ((f"sport = :{port}", incoming), (f"dport = :{port}", outgoing)) if wanted]
    for first in range(0, len(peers), 50):
        hosts = " or ".join(f"dst {_host(peer)}" for peer in peers[first : first + 50])
        chosen = f"( {' or '.join(ends)} ) and ( {hosts} ) and not fwmark = {MARK:#x}/{MARK_MASK:#x}"
        try:
            _ss("-KtnH", "state", "established", chosen)
        except CaptureError as error:
            return str(error)
    return None


def _host(peer: str) -> str:
    return f"[{peer}]" if ":" in peer else peer


def _has_net_admin(status: Path) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> CAP_NET_ADMIN & 1)


def _ss(*arguments: str) -> str:
    try:
        command = shutil.which("ss") or "ss"
        done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError(f"ss cannot be run: {error}") from error
    if done.returncode:
        raise CaptureError(f"ss failed: {done.stderr.strip()}")
    return done.stdout
