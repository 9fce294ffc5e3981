# SPDX-License-Identifier: Apache-2.0
"""Which keys a sidecar that captures could not read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from weir.proxy.checkup.machine import Process, readable_findings
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.load import parse_config

USER, GROUP, OTHER = 70_001, 70_002, 70_003


def told(folder: Path, issued: str, *, captures: bool = True) -> list[str]:
    """Return what is told of a key for a process of USER in GROUP."""
    kind = (
        "[capture]\nport = 9092\n[capture.tls]\n"
        if captures
        else ('[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:1"\n[ingress.tls]\n')
    )
    upstream = "[capture.upstream_tls]\n" if captures else ""
    cluster = '[cluster]\nbootstrap_servers = "b:9092"\n'
    config = parse_config(f'broker_id = 1\n{cluster}{kind}certificate = "{issued}"\nca = "{issued}"\n{upstream}')
    proc = folder / "proc"
    (proc / "5").mkdir(parents=True, exist_ok=True)
    (proc / "5" / "status").write_text(f"Gid:\t1\t1\t1\t1\nGroups:\t7 {GROUP}\n")
    process = Process(5, USER, 1_000, True)
    return [found.sentence for found in readable_findings(config, RouteKeys(config).all_keys, process, proc)]


@pytest.fixture
def key() -> Iterator[Path]:
    """A key in a folder that is open to all; pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "keys").mkdir(mode=0o755)
        yield Path(Authority(folder / "keys").issue("broker-1").together)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to others")
@pytest.mark.parametrize(
    ("owner", "group", "mode", "may"),
    [
        (USER, OTHER, 0o600, True),
        (OTHER, OTHER, 0o600, False),
        (OTHER, GROUP, 0o640, True),
        (OTHER, GROUP, 0o604, False),
        (OTHER, OTHER, 0o644, True),
        (USER, GROUP, 0o044, False),
    ],
)
def test_file_that_only_others_may_read_is_told_of(
    key: Path, tmp_path: Path, owner: int, group: int, mode: int, may: bool
) -> None:
    os.chown(key, owner, group)
    key.chmod(mode)
    found = told(tmp_path, str(key))
    assert [f"{key} can be read by other users alone" in one for one in found] == ([] if may else [True])
    assert told(tmp_path, str(key), captures=False) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to others")
def test_folder_that_is_closed_closes_its_files(key: Path, tmp_path: Path) -> None:
    os.chown(key, USER, GROUP)
    key.parent.chmod(0o700)
    assert len(told(tmp_path, str(key))) == 1
