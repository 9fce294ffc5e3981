# SPDX-License-Identifier: Apache-2.0
"""What `make setup` does for the lab: fetches Kafka's jars, and records which classes a broker loads.

    python -m weir.lab.prepare

With the archive (class data sharing, JEP 350) three brokers start in 2 to 3 s instead of 4 to 7 s. It holds for
the very jars and JVM that made it; any other JVM leaves it aside, and starts slower. Only what the demo and `make test`
run is prepared. The jars of other modes are fetched when a cluster of theirs first starts.
"""

from __future__ import annotations

import sys

from weir.control.errors import ControlError
from weir.lab import jars
from weir.lab.errors import LabError
from weir.lab.modes import CORNERS, Mode
from weir.lab.produce import fill


def prepare(mode: Mode) -> None:
    """Fetch and check the jars of a mode, and make its class archive. Raises LabError, ControlError."""
    jars.ensure(mode.kafka)
    archive = jars.class_archive(mode.kafka)
    archive.unlink(missing_ok=True)
    made = archive.with_suffix(".made")
    with mode.cluster(brokers=1, jvm_flags=[f"-XX:ArchiveClassesAtExit={made}"]) as cluster:
        cluster.create_topic("classes", {0: [1]})
        fill(cluster.bootstrap_servers, "classes", {0: 100_000})
        cluster.stop_broker(1)  # the JVM writes the archive when it ends in order
    if made.is_file():
        made.replace(archive)
    print(f"Kafka {mode.kafka}: a broker starts, takes records and stops.", file=sys.stderr)


def main() -> int:
    """Prepare every version of Kafka that `make test` runs; 0 when all are there."""
    try:
        for mode in {mode.kafka: mode for mode in CORNERS}.values():
            prepare(mode)
    except (LabError, ControlError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
