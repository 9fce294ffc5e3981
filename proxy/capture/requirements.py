# SPDX-License-Identifier: Apache-2.0
"""What capturing needs of the machine, checked before anything is set, and the one privilege that it keeps."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from weir.proxy.capture.rules import MARK, MARK_MASK

CAP_NET_ADMIN: Final = 12  # linux/capability.h
_CAPABILITY_VERSION: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two words of 32 bits for each set
_PR_CAPBSET_READ: Final = 23  # linux/prctl.h
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2


def keep_only_net_admin() -> str | None:
    """Give up every capability but CAP_NET_ADMIN, for good. Returns why it could not be done; None where it was.

    The kernel keeps capabilities by thread, and a new thread has those of the one that starts it: call it before any
    thread is started. Programs that this process runs have CAP_NET_ADMIN too (ss needs it), and can get no more.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    capability = 0
    while (held := libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0)) >= 0:
        if held and capability != CAP_NET_ADMIN:
            # Only root may; for others `no_new_privs` is enough, as they hold nothing that a program could gain.
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        capability += 1
    mask = 1 << CAP_NET_ADMIN
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    sets = struct.pack("=6I", mask, mask, mask, 0, 0, 0)  # effective, permitted, inheritable
    if libc.capset(header, sets):
        return f"the kernel keeps this process's capabilities as they are (error {ctypes.get_errno()})"
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, CAP_NET_ADMIN, 0, 0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return f"the kernel lets programs gain privileges (error {ctypes.get_errno()})"
    return None


def advice_for_root(user: int, *, captures: bool) -> str | None:
    """Return what to do instead of running as root, if `user`, whose number it is, is root."""
    if user != 0:
        return None
    if captures:
        return "give a user of its own CAP_NET_ADMIN alone (systemd: AmbientCapabilities=), which is all that it needs"
    return "start it as a user of its own: it needs no privileges"


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
