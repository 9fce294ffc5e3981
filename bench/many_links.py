"""Hundreds of followers behind one leader's sidecar, in line for one quota: `python -m bench.many_links`.

The sidecar is a process of its own, as are the leader and all followers, which are made up and cost little. Each link
has 50 partitions with an endless backlog. Measured are the rate, how long a link waits for its turn, whether all get
alike, and what the sidecar takes of a core.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.many_links_peers import Followed
from bench.processes import running, wait_for
from bench.relay import free_port
from bench.table import Report, parser

QUOTA = 20_000_000
WARM_UP_SECONDS = 5.0
LEAST_MEAN = 0.99
LEAST_PART, MOST_PART = 0.8, 1.2
LONGEST_WAIT_SECONDS = 5.0
MOST_OF_A_CORE = 0.5

COLUMNS = {
    "links": 0,
    "Fetch": 0,
    "mean": 3,
    "worst second": 3,
    "least part": 2,
    "largest part": 2,
    "longest wait, s": 2,
    "all have begun after, s": 1,
    "answers/s": 0,
    "of a core": 2,
    "load of the machine": 1,
}


def main() -> int:
    """Measure and print; 1 when an aim is missed."""
    options = parser("bench.many_links", "Measure hundreds of links that wait for one quota of 20 MB/s.")
    options.add_argument("--links", type=int, nargs="+", default=[120, 500], help="how many (120 500)")
    options.add_argument("--versions", type=int, nargs="+", default=[3, 12], help="of Fetch, 3 to 12 (3 12)")
    options.add_argument("--seconds", type=float, default=30.0, help="of each measurement (30)")
    options.add_argument("--warm-up", type=float, default=WARM_UP_SECONDS, help="seconds before it (5)")
    options.add_argument("--tree", type=Path, default=Path.cwd(), help="measure the sidecar of another checkout")
    chosen = options.parse_args()
    report = Report(chosen.json)
    found: list[tuple[str, Followed, float]] = []

    def measured() -> Iterator[Sequence[object]]:
        for version in chosen.versions:
            for links in chosen.links:
                followed, core = _measure(chosen.tree, links, version, chosen.warm_up, chosen.seconds)
                found.append((f"{links} links, v{version}", followed, core))
                parts = _parts(followed)
                yield (
                    links,
                    f"v{version}",
                    _mean(followed),
                    followed.worst_second / QUOTA,
                    min(parts),
                    max(parts),
                    max(followed.longest_waits),
                    followed.begun_seconds,
                    followed.answers / followed.seconds,
                    core,
                    os.getloadavg()[0],
                )

    report.table(f"20 MB/s for all links, {chosen.seconds:g} s each; rates are parts of the quota", COLUMNS, measured())
    for name, followed, core in found:
        parts = _parts(followed)
        report.bound(f"mean of {name}, x quota", _mean(followed), least=LEAST_MEAN)
        report.bound(f"least part of {name}, x the fair one", min(parts), least=LEAST_PART)
        report.bound(f"largest part of {name}, x the fair one", max(parts), most=MOST_PART)
        report.bound(f"longest wait of {name}, s", max(followed.longest_waits), most=LONGEST_WAIT_SECONDS)
        report.bound(f"CPU under {name}, of a core", core, most=MOST_OF_A_CORE)
        report.bound(f"errors answered to {name}", followed.errors, most=0)
    return report.status


def _mean(followed: Followed) -> float:
    return sum(followed.received) / followed.seconds / QUOTA


def _parts(followed: Followed) -> list[float]:
    fair = sum(followed.received) / len(followed.received)
    return [size / fair if fair else 0.0 for size in followed.received]


def _measure(tree: Path, links: int, version: int, warm_up: float, seconds: float) -> tuple[Followed, float]:
    """What the followers saw, and what the sidecar took of a core meanwhile."""
    leader = (sys.executable, "-c", "from bench.many_links_peers import serve; serve()")
    followers = (sys.executable, "-c", "from bench.many_links_peers import follow; follow()")
    with running(*leader) as serving:
        assert serving.stdout is not None
        with sidecar(tree, int(serving.stdout.readline()), QUOTA) as (port, process):
            arguments = (str(port), str(links), str(version), str(warm_up), str(seconds))
            with running(*followers, *arguments) as following:
                assert following.stdout is not None
                if following.stdout.readline() != b"warm\n":
                    raise ConnectionError(f"The followers of {links} links ended early.")
                before = cpu_seconds(process.pid)
                line = following.stdout.readline()
                core = cpu_seconds(process.pid) - before
    if not line:
        raise ConnectionError(f"The followers of {links} links ended early.")
    followed = Followed(**json.loads(line))
    return followed, core / followed.seconds


def cpu_seconds(pid: int) -> float:
    """What a process has taken of the processors, its own time and the system's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def sidecar(tree: Path, upstream: int, quota: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A sidecar of its own process in front of a leader, and its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "weir.toml"
        config.write_text(
            f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
            f'[admin]\nlisten = "127.0.0.1:{free_port()}"\n[log]\nlevel = "error"\n'
            f'[throttle]\n"leader.replication.throttled.rate" = {quota}\n'
            '[throttle.topics.t]\n"leader.replication.throttled.replicas" = "*"\n'
        )
        run = "from weir.cli.main import main; main()"
        with running("env", f"--chdir={tree}", sys.executable, "-c", run, "run", "--config", str(config)) as process:
            wait_for(port)
            yield port, process


if __name__ == "__main__":
    sys.exit(main())
