# SPDX-License-Identifier: Apache-2.0
"""`weir capture pause|resume` against a real sidecar, whose packet filter only remembers what it was told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from tests.proxy.captured import Dropped, FakeFilter
from weir.cli.main import main
from weir.proxy.capture.capture import Capture
from weir.proxy.config.load import parse_config
from weir.proxy.config.tables import CaptureTable
from weir.proxy.sidecar import Sidecar

FILE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:0"
upstream = "127.0.0.1:1"
[admin]
listen = "127.0.0.1:0"
"""


@pytest.fixture
async def sidecar() -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(parse_config(FILE), "1")
    capture = Capture(CaptureTable(port=9092), 1, sidecar._by_name, sidecar.log, FakeFilter, Dropped())
    sidecar.capture = sidecar.shown.capture = capture
    await sidecar.start()
    yield sidecar
    await sidecar.close()


async def weir(sidecar: Sidecar, *words: str) -> int:
    return await asyncio.to_thread(main, [*words, "--admin", str(sidecar.admin_address)])


async def test_capture_is_paused_for_a_time_told_of_and_resumed(
    sidecar: Sidecar, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("capture", "pause", "--for", "10m", "--owner", "ann", "--reason", "is it weir?")
    assert await weir(sidecar, *words) == 0
    assert "paused, 10 min left" in capsys.readouterr().out
    await weir(sidecar, "status")
    assert re.search(r"Broker 1: the capture is paused for \d+ s more \(ann: is it weir\?\)", capsys.readouterr().out)
    assert await weir(sidecar, "capture", "resume") == 0
    assert "not paused" in capsys.readouterr().out
    assert sidecar.shown.troubles() == {}
    assert await weir(sidecar, "capture", "pause") == 0
    assert sidecar.shown.troubles().keys() == {"paused"}


async def test_a_sidecar_that_listens_is_not_paused(sidecar: Sidecar, capsys: pytest.CaptureFixture[str]) -> None:
    sidecar.shown.capture, capture = None, sidecar.shown.capture
    assert await weir(sidecar, "capture", "pause") == 2
    assert "only its end takes it out of the path" in capsys.readouterr().err
    sidecar.shown.capture = capture
