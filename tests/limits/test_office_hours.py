"""The limiter of the docs: installed as a package, found by its name, and in force."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proxy.test_config_limits import BASE

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "office-hours"

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
    client.count([Batch("orders", 100, 5000)], 6000)
    assert abs(client.pause() - pause) < 1e-6, (hour, client.pause())
assert faults == []
print("held")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the example's package is installed in."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    source.mkdir()
    for file in EXAMPLE.iterdir():
        if file.is_file():
            (source / file.name).write_text(file.read_text())
    target = folder / "target"
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=120)
    return target


def test_the_limiter_of_the_docs_is_found_by_its_name_and_limits_by_day(installed: Path, tmp_path: Path) -> None:
    limits = """
[[limits.client]]
client_id = "connector-consumer-*"
"rate.limiters" = ["RecordRateLimiter", "office-hours"]
"record.rate.limit" = 5000
"office.record.rate.limit" = 500
"""
    (tmp_path / "weir.toml").write_text(BASE + limits)
    path = os.pathsep.join([str(installed), str(EXAMPLE.parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr
