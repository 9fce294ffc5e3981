# SPDX-License-Identifier: Apache-2.0
"""What a capture needs of the machine, and what it gives up of it."""

import ctypes
import json
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from weir.proxy.capture import requirements
from weir.proxy.capture.nftables import Nftables, NftError
from weir.proxy.capture.requirements import CAP_NET_ADMIN, CaptureError, check_broker, check_machine
from weir.proxy.capture.rules import mark_of

PROJECT = Path(__file__).parents[2]
NET_ADMIN = 1 << CAP_NET_ADMIN

KEEPS = """
import json, subprocess, sys, threading
from pathlib import Path
from weir.proxy.capture.requirements import keep_only_net_admin
reason = keep_only_net_admin()
later = threading.Thread(target=threading.Event().wait, args=(60,), daemon=True)
later.start()
threads = [task.read_text() for task in Path("/proc/self/task").glob("*/status")]
child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
print(json.dumps([reason, threads, child]))
"""


@pytest.fixture
def status(tmp_path: Path) -> Path:
    file = tmp_path / "status"
    file.write_text(f"CapPrm:\t{0:016x}\nCapEff:\t{NET_ADMIN:016x}\n")
    return file


def fields(status: str) -> dict[str, int]:
    lines = [line.split() for line in status.splitlines() if line.startswith(("Cap", "NoNewPrivs"))]
    return {name.rstrip(":"): int(value, 16) for name, value in lines}


@pytest.mark.skipif(not fields(Path("/proc/self/status").read_text())["CapEff"] & NET_ADMIN, reason="needs root")
def test_only_net_admin_is_kept_in_all_threads_and_programs() -> None:
    """Programs run with it too: `ss` needs it to break connections."""
    done = subprocess.run([sys.executable, "-c", KEEPS], cwd=PROJECT, capture_output=True, text=True, check=True)
    reason, threads, child = json.loads(done.stdout)
    assert reason is None
    assert len(threads) == 2
    for found in map(fields, (*threads, child)):
        assert found["CapEff"] == found["CapPrm"] == found["CapBnd"] == NET_ADMIN
        assert found["NoNewPrivs"] == 1


def test_old_kernel_is_refused(status: Path) -> None:
    with pytest.raises(CaptureError, match=r"needs Linux 5.12 or newer, and this is 5.4.0-generic"):
        check_machine(status, "5.4.0-generic")


def test_missing_privilege_is_refused(status: Path) -> None:
    status.write_text(f"CapEff:\t{~NET_ADMIN & 0xFFFF:016x}\n")
    with pytest.raises(CaptureError, match=r"needs the capability CAP_NET_ADMIN: run weir as root, or"):
        check_machine(status, "6.1")


def test_missing_ss_is_refused(status: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(status.parent))
    with pytest.raises(CaptureError, match=r"needs the command ss: install iproute2"):
        check_machine(status, "6.1")


def test_machine_with_all_of_it_is_taken(status: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (status.parent / "ss").write_text("#!/bin/sh\n")
    (status.parent / "ss").chmod(0o755)
    monkeypatch.setenv("PATH", str(status.parent))
    check_machine(status, "5.12.0")


def test_missing_library_of_nft_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.proxy.capture.nftables._LIBRARY", "libnftables.so.none")
    with pytest.raises(NftError, match=r"libnftables.so.none is not there: install nftables"):
        Nftables()


def _listening(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(requirements, "_ss", lambda *_: said)


def test_port_that_nothing_listens_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _listening(monkeypatch, "")
    with pytest.raises(CaptureError, match=r"nothing listens on port 9092 of this machine: give the broker's own port"):
        check_broker(9092)


def test_broker_under_weirs_own_mark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _listening(monkeypatch, f"LISTEN 0 50 *:9092 *:* ino:1 sk:2 fwmark:{mark_of(1):#x} <->\n")
    with pytest.raises(CaptureError, match=r"what listens on port 9092 carries weir's own mark"):
        check_broker(9092)


def test_broker_under_another_mark_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    _listening(monkeypatch, "LISTEN 0 50 *:9092 *:* ino:1 sk:2 fwmark:0x1 <->\n")
    check_broker(9092)


def test_filter_is_closed_after_the_command_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are listed in a thread, and what libnftables works with is not freed under it as the sidecar ends."""
    runs, goes_on, happened = threading.Event(), threading.Event(), list[str]()

    def run(*_: object) -> int:
        runs.set()
        goes_on.wait(5)
        happened.append("listed")
        return 0

    library = MagicMock()
    library.nft_run_cmd_from_buffer.side_effect = run
    library.nft_ctx_get_error_buffer.return_value = library.nft_ctx_get_output_buffer.return_value = b""
    library.nft_ctx_free.side_effect = lambda _: happened.append("freed")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    packet_filter = Nftables()
    listing = threading.Thread(target=packet_filter.run, args=("list ruleset",))
    closing = threading.Thread(target=packet_filter.close)
    listing.start()
    runs.wait(5)
    closing.start()
    closing.join(0.1)
    goes_on.set()
    listing.join()
    closing.join()
    assert happened == ["listed", "freed"]
    with pytest.raises(NftError, match="closed"):
        packet_filter.run("list ruleset")
