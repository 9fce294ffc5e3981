# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: network namespaces that a bridge connects. This process is on the bridge, too.

It needs root and `ip` (iproute2). What a program that was killed has left is removed by the next.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from weir.lab.errors import LabError

_PREFIX = "weirlab"
_TRIES = 20
_made = itertools.count(1)


def missing() -> str | None:
    """Return why no hosts can be made here; None where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
    except LabError as error:
        return f"network namespaces cannot be made: {error}"
    _ip("netns", "del", probe)
    return None


class Hosts:
    """`count` hosts with the addresses 10.x.y.1, 10.x.y.2, ... and with IPv6; a context manager."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._id = f"{os.getpid()}-{next(_made)}"
        self._subnet = ""
        self._subnet6 = ""

    def start(self) -> None:
        """Make the hosts. Raises LabError."""
        _remove_leftovers()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the hosts, and whatever runs on them loses its network."""
        for number in range(1, self._count + 1):
            _ip("netns", "del", self.name(number), may_fail=True)
        _ip("link", "del", f"wl{self._id}", may_fail=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def name(self, number: int) -> str:
        """Return the namespace of a host, 1 the first."""
        return f"{_PREFIX}-{self._id}-{number}"

    def address(self, number: int) -> str:
        """Return a host's IPv4 address."""
        return f"{self._subnet}.{number}"

    def address6(self, number: int) -> str:
        """Return a host's IPv6 address."""
        return f"{self._subnet6}::{number}"

    def on(self, number: int, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a host."""
        return ["ip", "netns", "exec", self.name(number), *command]

    def run(self, number: int, *command: str) -> str:
        """Run a command on a host, and return what it printed. Raises LabError."""
        return _run(self.on(number, command))

    def _make(self) -> None:
        bridge = f"wl{self._id}"
        _ip("link", "add", bridge, "type", "bridge")
        self._take_subnet(bridge)
        _ip("link", "set", bridge, "up")
        for number in range(1, self._count + 1):
            name, outer = self.name(number), f"{bridge}-{number}"
            _ip("netns", "add", name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "addr", "add", f"{self.address6(number)}/64", "dev", "eth0", "nodad", may_fail=True)
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def _take_subnet(self, bridge: str) -> None:
        taken = _ip("-4", "addr")
        for _ in range(_TRIES):
            low, high = random.randrange(100, 250), random.randrange(1, 250)  # noqa: S311 - no secret
            subnet = f"10.{low}.{high}"
            if f" {subnet}." not in taken:
                self._subnet, self._subnet6 = subnet, f"fd77:{low:x}:{high:x}"
                _ip("addr", "add", f"{subnet}.254/24", "dev", bridge)
                _ip("addr", "add", f"{self._subnet6}::fe/64", "dev", bridge, "nodad", may_fail=True)
                return
        raise LabError("No free network was found for the lab's hosts: remove other bridges first.")


def _remove_leftovers() -> None:
    for name, pid in re.findall(rf"({_PREFIX}-(\d+)-[\w-]+)", _ip("netns", "list")):
        if not os.path.exists(f"/proc/{pid}"):
            _ip("netns", "del", name, may_fail=True)
    for bridge, pid in re.findall(r"^\d+: (wl(\d+)-\d+):", _ip("-o", "link", "show", "type", "bridge"), re.MULTILINE):
        if not os.path.exists(f"/proc/{pid}"):
            _ip("link", "del", bridge, may_fail=True)


def _ip(*arguments: str, may_fail: bool = False) -> str:
    return _run(["ip", *arguments], may_fail=may_fail)


def _run(command: Sequence[str], *, may_fail: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and not may_fail:
        raise LabError(f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
