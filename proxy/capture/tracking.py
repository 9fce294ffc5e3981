# SPDX-License-Identifier: Apache-2.0
"""Which connections of this network namespace the kernel tracks while connections are captured.

A redirect needs the kernel's connection tracking, which then tracks all connections of the namespace. A table of them
that is full drops packets of everybody. So what is not captured is left out (`notrack`), unless somebody else's rules
need it tracked: a firewall such as firewalld would refuse the answers to connections of which it knows nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import socket
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Final

from weir.proxy.capture.nftables import NftError, PacketFilter
from weir.proxy.log import EventLog

_TABLE: Final = re.compile(r"^table (\S+ \S+) \{[^\n]*$(.*?)^\}$", re.MULTILINE | re.DOTALL)
_NEEDS_TRACKING: Final = re.compile(
    r"\b(ct|type nat|masquerade|[sd]nat|redirect|synproxy|notrack|flow add|xt|tproxy)\b"
)
_LEGACY: Final = (Path("/proc/net/ip_tables_names"), Path("/proc/net/ip6_tables_names"))

LOOK_SECONDS: Final = 60.0
"""How often it is looked whether others' rules are gone."""

_NETLINK_NETFILTER: Final = 12  # linux/netlink.h
_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
_NFNLGRP_NFTABLES: Final = 7  # linux/netfilter/nfnetlink.h
_NFNL_SUBSYS_NFTABLES: Final = 10 << 8
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = (_NFNL_SUBSYS_NFTABLES | kind for kind in (0, 3, 6))  # enum nf_tables_msg_types
_MESSAGE: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port


def needed_by(ruleset: str, own_tables: Collection[str] = ()) -> str | None:
    """Return whose rules need connections tracked, beside those of `own_tables`; None where nobody's do.

    `ruleset` is what `nft list ruleset` prints. Tables of the older iptables, which are not in it, count unread.
    """
    for name, rules in _TABLE.findall(ruleset):
        if name not in own_tables and _NEEDS_TRACKING.search(rules):
            return f"table {name}"
    return legacy_tables()


def legacy_tables(files: tuple[Path, ...] = _LEGACY) -> str | None:
    """Return which tables the older iptables has here; None where it has none."""
    for file in files:
        try:
            named = file.read_text().split()
        except FileNotFoundError:
            continue
        except OSError:
            return "tables of iptables-legacy that may not be read"
        if named:
            return f"tables of iptables-legacy: {', '.join(named)}"
    return None


@dataclass(eq=False)
class Tracking:
    """Decides whether the kernel tracks connections that are not captured, from one look to the next.

    While it does not, each rule that somebody adds is a reason to look. `tables` are those that the capture may have.
    `open_filter` opens what others' rules are read with; `events` tells of rules that are added, None: nobody does.
    """

    _tables: Collection[str]
    open_filter: InitVar[Callable[[], PacketFilter]]
    _events: RuleEvents | None
    _log: EventLog
    _clock: Callable[[], float] = time.monotonic
    needed_by: str | None = "not looked at yet"
    """Whose rules need all connections tracked; None: nobody's do, and only those between brokers are."""
    _next_look: float = -math.inf
    _added: bool = False

    def __post_init__(self, open_filter: Callable[[], PacketFilter]) -> None:
        self._filter = open_filter()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` when rules were added."""

        def told() -> None:
            if self._events is not None and self._events.have_come():
                self._added = True
                callback()

        if self._events is not None:
            asyncio.get_running_loop().add_reader(self._events.socket, told)

    async def look(self) -> str | None:
        """Return whose rules need all connections tracked, as soon as somebody's may."""
        before = self.needed_by
        if self._clock() < self._next_look and (before is not None or not (self._added or legacy_tables())):
            return before
        self._added = False
        try:
            self.needed_by = needed_by(await asyncio.to_thread(self._filter.run, "list ruleset"), self._tables)
        except NftError as error:
            self.needed_by = f"rules that cannot be read: {error}"
        self._next_look = self._clock() + LOOK_SECONDS
        if self.needed_by != before:
            effect = "connections between brokers alone are tracked" if self.needed_by is None else "all are tracked"
            self._log.info("connection_tracking", needed_by=self.needed_by or "nobody", effect=effect)
        return self.needed_by

    def close(self) -> None:
        """Close the packet filter, and hear of no more rules."""
        self._filter.close()
        if self._events is not None:
            asyncio.get_running_loop().remove_reader(self._events.socket)
            self._events.close()


def rule_events() -> RuleEvents | None:
    """Return what tells of rules that are added; None where the kernel does not."""
    try:
        return RuleEvents()
    except OSError:
        return None


class RuleEvents:
    """Tells when somebody in this network namespace adds tables, chains or rules. Raises OSError where it may not."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_NETFILTER)
        try:
            self.socket.bind((0, 0))
            self.socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        except OSError:
            self.socket.close()
            raise

    def have_come(self) -> bool:
        """Return whether rules were added since the last call. Changes of sets, such as a capture's own, are none."""
        found = False
        while True:
            try:
                told = self.socket.recv(2**16)
            except BlockingIOError:
                return found
            except OSError:  # more than the socket keeps
                found = True
                continue
            found |= any(kind in (_NEW_TABLE, _NEW_CHAIN, _NEW_RULE) for kind in _kinds(told))

    def close(self) -> None:
        """Close the socket: no more rules are told of."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _kinds(told: bytes) -> list[int]:
    kinds, at = [], 0
    while at + _MESSAGE.size <= len(told):
        length, kind, *_ = _MESSAGE.unpack_from(told, at)
        kinds.append(kind)
        at += max(_MESSAGE.size, (length + 3) & ~3)
    return kinds
