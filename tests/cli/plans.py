# SPDX-License-Identifier: Apache-2.0
"""Commands that ask for a plan, and the answers that they print."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from typing import Any

import pytest

from weir.cli.main import main

ASK = "plan --size 2TB --brokers 10 --move-ratio 0.1 --in 20MB/s --network 1Gb/s --replication 3"
NO_NETWORK = "plan --size 2TB --brokers 10 --move-ratio 0.1 --in 20MB/s"
MB = 1_000_000
NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)  # 22:00 in the zone of the tests


def answer(capsys: pytest.CaptureFixture[str], command: str, status: int = 0) -> Any:
    """Run a command with --json and return what it printed."""
    assert main([*shlex.split(command), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def values(plan: Any) -> dict[str, Any]:
    return {name: figure["value"] for name, figure in plan["figures"].items()}
