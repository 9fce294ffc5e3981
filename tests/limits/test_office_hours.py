# SPDX-License-Identifier: Apache-2.0
"""The limiter of the docs: installed as a package, found by its name, and in force."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.installed import PROJECT, Environment
from tests.proxy.test_config_limits import BASE

pytestmark = pytest.mark.long

EXAMPLE = PROJECT / "docs" / "examples" / "office-hours"

PROGRAM = """
import office_hours
from weir.limits.clients import Clients
from weir.limits.rate_limiter import Batch
from weir.proxy.config.client_limits import rules_of
from weir.proxy.config.load import parse_config
now = [100.0]
faults = []
clients = Clients(lambda: now[0], lambda *fault: faults.append(fault))
(rule,) = rules_of(parse_config(open("weir.toml").read()).limits.client)
assert rule.limiters[1].make is office_hours.OfficeHours
clients.configure([rule])
for hour, pause in ((12, 0.2), (22, 0.02)):
    office_hours.time.gmtime = lambda: type("Time", (), {"tm_hour": hour})
    now[0] += 60
    client = clients.of(f"connector-consumer-s3-{hour}")
    client.count([Batch("orders", 100, 5000)])
    assert abs(client.pause() - pause) < 1e-6, (hour, client.pause())
assert faults == []
print("held")
"""


def test_limiter_of_the_docs_is_found_by_name_and_limits_by_day(tmp_path: Path, wheel: Path) -> None:
    """It and weir are installed side by side, as packages."""
    environment = Environment(tmp_path / "env")
    # a build leaves files in the folder
    environment.install(wheel, shutil.copytree(EXAMPLE, tmp_path / "source"))
    limits = """
[[limits.client]]
client_id = "connector-consumer-*"
"rate.limiters" = ["RecordRateLimiter", "office-hours"]
"record.rate.limit" = 5000
"office.record.rate.limit" = 500
"""
    (tmp_path / "weir.toml").write_text(BASE + limits)
    done = environment.run("weir", "check", "--config", str(tmp_path / "weir.toml"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = environment.run("python", "-c", PROGRAM, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr
