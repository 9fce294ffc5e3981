# SPDX-License-Identifier: Apache-2.0
"""`.ci/packages` where it cannot install anything: one line, and the run goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ALWAYS = "chromium systemd-container krb5-kdc krb5-admin-server nftables iproute2 rsync openssl"
SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "packages"


def run_with(path: Path, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it where there are only these programs, each the text of a shell script."""
    for name, text in programs.items():
        program = path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run([bash, SCRIPT], env={"PATH": str(path)}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({}, f"prometheus {ALWAYS} (there is no apt-get)"),
        ({"apt-get": "exit 1", "id": "echo 1000"}, f"prometheus {ALWAYS} (that takes root)"),
        ({"promtool": "", "apt-get": "exit 1", "id": "echo 1000"}, f"{ALWAYS} (that takes root)"),
    ],
)
def test_packages_says_in_one_line_what_it_cannot_install(
    tmp_path: Path, programs: dict[str, str], reason: str
) -> None:
    done = run_with(tmp_path, programs)
    said = f"Not installed: {reason}. The tests that need them will be skipped.\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_packages_installs_nothing_where_all_are_there(tmp_path: Path) -> None:
    used = ("promtool", "chromium", "systemd-nspawn", "krb5kdc", "kadmin.local", "nft", "ip", "ss", "rsync", "openssl")
    done = run_with(tmp_path, {name: "exit 1" for name in (*used, "apt-get", "id")})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
