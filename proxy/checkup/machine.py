# SPDX-License-Identifier: Apache-2.0
"""What this machine lets a sidecar do: ways of installing it, its user, its descriptors, its files, its clock."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weir.proxy.admin.troubles import RUNBOOK, Connections, is_full
from weir.proxy.capture.nftables import Nftables, NftError, PacketFilter
from weir.proxy.capture.requirements import CaptureError, check_broker, check_machine
from weir.proxy.capture.rules import TABLE_NAME
from weir.proxy.capture.tracking import needed_by
from weir.proxy.checkup.findings import Finding, listed
from weir.proxy.config.tables import Config, Limits
from weir.proxy.open_files import files_of
from weir.proxy.relay.admission import connections_with, descriptors_for
from weir.proxy.tls.live_keys import LiveKeys

_MOST_SECONDS_APART: Final = 2.0
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC of linux/timex.h


def version_finding(version: str) -> Finding:
    """Return what runs here."""
    return Finding("ok", "weir", f"{version}, Python {platform.python_version()}, Linux {platform.release()}")


def way_findings(
    config: Config | None,
    open_filter: Callable[[], PacketFilter] = Nftables,
    check: Callable[[], None] = check_machine,
    check_port: Callable[[int], None] = check_broker,
) -> Iterator[Finding]:
    """Yield which ways of installing are possible here, and why others are not; what the file wants has to be."""
    why_not = _why_no_capture(open_filter, check)
    if config is None or config.capture is None:
        if why_not is None:
            yield Finding("ok", "capture", "possible here: [capture] needs no change to any broker")
        elif config is None:
            yield Finding("warn", "capture", f"not possible here: {why_not}; [[ingress]] and [[egress]] are")
        else:
            yield Finding("ok", "capture", f"not used, and not possible here: {why_not}")
    elif why_not is not None:
        yield Finding("fail", "capture", why_not)
    else:
        try:
            check_port(config.capture.port)
        except CaptureError as error:
            yield Finding("fail", "capture.port", str(error).removeprefix("capture.port: "))
        else:
            yield Finding("ok", "capture", f"possible here, and a broker listens on port {config.capture.port}")
    yield Finding(
        "ok", "listeners", "possible here: [[ingress]] and [[egress]] need listeners of brokers changed, and names"
    )
    if ssl.HAS_TLSv1_3:
        yield Finding("ok", "tls", f"possible here, up to TLS 1.3 ({ssl.OPENSSL_VERSION})")
    else:
        sentence = f'{ssl.OPENSSL_VERSION} has no TLS 1.3: set least_version = "1.2" wherever there are keys'
        yield Finding("warn", "tls", sentence)


def rules_findings(open_filter: Callable[[], PacketFilter] = Nftables) -> Iterator[Finding]:
    """Yield what capture's rules are left in this network namespace; nothing where nobody may look."""
    try:
        packet_filter = open_filter()
        tables = re.findall(rf"^table inet ({TABLE_NAME})\b", packet_filter.run("list tables inet"), re.MULTILINE)
        for name in tables:
            # the kernel removes a table that has an owner when its owner ends
            if "flags owner" in packet_filter.run(f"list table inet {name}"):
                yield Finding("ok", "capture rules", f"{name} belongs to a sidecar that runs")
            else:
                sentence = f"{name} stands alone, and leads connections to nobody: weir capture remove takes it away"
                yield Finding("warn", "capture rules", sentence)
    except NftError:
        return


def _why_no_capture(open_filter: Callable[[], PacketFilter], check: Callable[[], None]) -> str | None:
    try:
        check()
        packet_filter = open_filter()
        packet_filter.run("list tables inet")
        packet_filter.close()
    except CaptureError as error:
        return str(error)
    except NftError as error:
        return f"the kernel's packet filter cannot be used: {error}"
    return None


@dataclass(frozen=True, slots=True)
class Process:
    """The sidecar's process, or this one where none runs: its user, and how many descriptors it may have."""

    pid: int
    user: int
    descriptors: int
    is_sidecar: bool


def sidecar_process(file: Path | None, proc: Path = Path("/proc")) -> Process:
    """Return the process that runs with this file, or else this process, which stands for it."""
    for folder in proc.glob("[0-9]*") if file is not None else ():
        try:
            words = (folder / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
            if "run" not in words or not any(_names(word, file, folder) for word in words):
                continue
            limit = re.search(r"^Max open files\s+\S+\s+(\d+)", (folder / "limits").read_text(), re.MULTILINE)
            hard = int(limit[1]) if limit is not None else resource.RLIM_INFINITY
            return Process(int(folder.name), folder.stat().st_uid, hard, True)
        except OSError:
            continue  # it has ended, or is another user's
    return Process(os.getpid(), os.geteuid(), resource.getrlimit(resource.RLIMIT_NOFILE)[1], False)


def _names(word: str, file: Path | None, folder: Path) -> bool:
    path = word.removeprefix("--config=")
    if file is None or not path.endswith(file.name):
        return False
    return (folder / "cwd" / path).resolve() == file.resolve()


def process_findings(config: Config | None, process: Process) -> Iterator[Finding]:
    """Yield what is found of the user and of the limit of descriptors."""
    who = "the sidecar" if process.is_sidecar else "who asks now"
    if process.user:
        yield Finding("ok", "user", f"{who} is not root")
    elif config is not None and config.capture is not None:
        yield Finding(
            "ok", "user", f"{who} is root; of what root may do a sidecar keeps CAP_NET_ADMIN alone, for [capture]"
        )
    else:
        sentence = f"{who} is root, and a sidecar without [capture] needs none of it: run it as a user of its own"
        yield Finding("warn", "user", sentence)
    hard = process.descriptors
    most = (Limits() if config is None else config.limits).max_connections
    if hard == resource.RLIM_INFINITY or hard >= descriptors_for(most):
        yield Finding(
            "ok", "descriptors", f"enough for the {most} connections of limits.max_connections, which take two each"
        )
        return
    sentence = (
        f"{hard} at most, enough for {connections_with(hard)} connections, which take two each, and"
        f" limits.max_connections is {most}: raise LimitNOFILE (systemd) or ulimit -Hn to {descriptors_for(most)}"
    )
    yield Finding("warn", "descriptors", sentence)


def tracking_findings(
    connections: Connections | None, open_filter: Callable[[], PacketFilter] = Nftables
) -> Iterator[Finding]:
    """Yield what is known of the kernel's table of connections: what is captured needs a place in it."""
    if connections is None:
        return
    told = f"{connections.tracked} of {connections.most} places are taken"
    needed = _tracking_needed_by(open_filter)
    who = "" if needed is None else f"; {needed}: for this all connections are tracked, not those between brokers alone"
    if is_full(connections):
        sentence = f"{told}, and packets of connections above are dropped: raise net.netfilter.nf_conntrack_max"
        yield Finding("fail", "conntrack", f"{sentence} ({RUNBOOK}){who}")
    else:
        yield Finding("ok", "conntrack", f"{told}{who}")


def _tracking_needed_by(open_filter: Callable[[], PacketFilter]) -> str | None:
    """Return whose rules need all connections tracked, beside one sidecar's; None: nobody's, or they are not shown."""
    try:
        rules = open_filter().run("list ruleset")
    except NftError:
        return None
    return needed_by(rules, re.findall(rf"^table (inet {TABLE_NAME})\b", rules, re.MULTILINE)[:1])


def kernel_says_synchronised() -> bool | None:
    """Return whether the kernel takes its clock for kept by somebody (NTP, PTP); None where it does not tell."""

    class Timex(ctypes.Structure):
        """The beginning of linux/timex.h's struct, with room for the rest."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 512),
        )

    told = Timex()
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(told)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not int(told.status) & _UNSYNCHRONISED


def clock_findings(is_synchronised: bool | None, ahead: Mapping[str, float]) -> Iterator[Finding]:
    """Yield what is known of clocks. `ahead`: by how many seconds those of other sidecars' machines are ahead.

    Quotas go by the monotonic clock, which nobody sets. Certificates, leases and samples go by the time of day.
    """
    if is_synchronised is False:
        sentence = (
            "the kernel says that nobody keeps this machine's clock: certificates, leases and samples go by it;"
            " start chrony or systemd-timesyncd (in a container it is the host's)"
        )
        yield Finding("warn", "clock", sentence)
    elif is_synchronised:
        yield Finding("ok", "clock", "the kernel says that it is kept")
    apart = {name: seconds for name, seconds in ahead.items() if abs(seconds) > _MOST_SECONDS_APART}
    for name, seconds in sorted(apart.items()):
        way = "ahead of" if seconds > 0 else "behind"
        yield Finding(
            "warn", "clock", f"the machine of {name} is {abs(seconds):.0f} s {way} this one: set one of the two"
        )
    if ahead and not apart:
        yield Finding("ok", "clock", f"{listed(sorted(ahead))} agree within {_MOST_SECONDS_APART:g} s")
    elif not ahead:
        yield Finding(
            "ok", "clock", "Kafka's protocol does not tell a broker's, and no other sidecar answers here to compare"
        )


def readable_findings(
    config: Config, all_keys: Iterable[LiveKeys], process: Process, proc: Path = Path("/proc")
) -> Iterator[Finding]:
    """Yield the files with keys that `process`, or a sidecar like it, may not read by its user and groups alone."""
    if config.capture is None:
        return
    groups = _groups(proc / str(process.pid) / "status")
    for path, about in files_of(config, all_keys).items():
        if not _may_read(Path(path), process.user, groups):
            sentence = (
                f"{path} can be read by other users alone, and a sidecar that captures gives up root's right to read"
                f" them: give it to user {process.user}, or to a group of that user that may read it"
            )
            yield Finding("fail", about, sentence)


def _may_read(path: Path, user: int, groups: Collection[int]) -> bool:
    """Return whether the file's mode lets this user read it, and each folder on the way lets it pass."""
    real = path.resolve()
    return all(_lets(one, 0o4 if one == real else 0o1, user, groups) for one in (real, *real.parents))


def _lets(path: Path, wanted: int, user: int, groups: Collection[int]) -> bool:
    try:
        found = path.stat()
    except OSError:
        return True  # that it is not there is told elsewhere
    if found.st_uid == user:
        return bool(found.st_mode >> 6 & wanted)
    return bool((found.st_mode >> 3 if found.st_gid in groups else found.st_mode) & wanted)


def _groups(status: Path) -> frozenset[int]:
    try:
        text = status.read_text()
    except OSError:
        return frozenset()
    lines = re.findall(r"^(?:Gid|Groups):(.*)$", text, re.MULTILINE)
    return frozenset(int(number) for line in lines for number in line.split())
