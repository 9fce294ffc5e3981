# SPDX-License-Identifier: Apache-2.0
"""What ends a sidecar whose event loop hangs: its supervisor's watchdog and, with capture, a timer of the kernel."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Final

from weir.proxy.log import EventLog

HANG_SECONDS: Final = 8.0
"""With capture, a process whose event loop has not turned for so long is killed, and connections go on beside it."""

_TICK_SECONDS: Final = 1.0


class Watchdog:
    """Says that the event loop turns, from `start` to `close`.

    - The supervisor is told as systemd's sd_notify(3) does, if `environment` names its socket.
    - `kills`: where nobody tells the kernel for HANG_SECONDS, it kills this process. So it ends the connections that a
      hung sidecar holds, where the peers then connect directly. It takes no second process, and no supervisor.
    """

    def __init__(self, log: EventLog, *, kills: bool, environment: Mapping[str, str] = os.environ) -> None:
        self._log = log
        self._socket = environment.get("NOTIFY_SOCKET")
        wanted = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        supervisor_seconds = int(environment.get("WATCHDOG_USEC", "0")) / 1e6 if wanted else 0.0
        self._seconds = min(_TICK_SECONDS, supervisor_seconds / 2 or _TICK_SECONDS)
        self._is_watched = supervisor_seconds > 0
        self._timer = KillTimer() if kills else None
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Say that the sidecar listens, and from now on that it lives."""
        self._notify("READY=1")
        if self._timer is not None and (reason := self._timer.create()) is not None:
            self._timer = None
            self._log.warning("hang_not_ended", reason=reason, effect="connections wait for as long as this hangs")
        self._tick()

    def stopping(self) -> None:
        """Tell the supervisor that the sidecar drains, and ends soon."""
        self._notify("STOPPING=1")

    def handed_over(self, pid: int) -> None:
        """Say which process the supervisor is to watch from now on."""
        self._notify(f"MAINPID={pid}")

    def close(self) -> None:
        """Tell nobody any more, and disarm the kernel's timer."""
        if self._next is not None:
            self._next.cancel()
        if self._timer is not None:
            self._timer.set(0)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.set(HANG_SECONDS)
        if self._is_watched:
            self._notify("WATCHDOG=1")
        self._next = asyncio.get_running_loop().call_later(self._seconds, self._tick)

    def _notify(self, state: str) -> None:
        if not self._socket:
            return
        name = "\0" + self._socket[1:] if self._socket.startswith("@") else self._socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            try:
                sending.sendto(state.encode(), name)
            except OSError:
                return  # a supervisor that does not listen is told no more than one that is not there


class _Event(ctypes.Structure):  # struct sigevent: 64 bytes
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * (64 - ctypes.sizeof(ctypes.c_void_p) - 2 * ctypes.sizeof(ctypes.c_int))),
    )


class _Setting(ctypes.Structure):  # struct itimerspec
    _fields_ = tuple((name, ctypes.c_long) for name in ("every", "every_ns", "seconds", "nanoseconds"))


class KillTimer:
    """A timer of the kernel that sends SIGKILL to this process, which ends one that is stopped (SIGSTOP) too.

    It does not count while the machine sleeps, and no child inherits it.
    """

    _SIGEV_SIGNAL: Final = 0  # asm-generic/siginfo.h

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "timer_create"):  # before glibc 2.34
            self._libc = ctypes.CDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()

    def create(self) -> str | None:
        """Make the timer, which is not set yet. Returns why there is none; None where there is."""
        event = _Event(None, signal.SIGKILL, self._SIGEV_SIGNAL)
        if self._libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            return f"the kernel gives no timer: {os.strerror(ctypes.get_errno())}"
        return None

    def set(self, seconds: float) -> None:
        """Kill this process in so many seconds, in place of what was set before; 0: never."""
        whole = int(seconds)
        setting = _Setting(0, 0, whole, int((seconds - whole) * 1e9))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(setting), None)
