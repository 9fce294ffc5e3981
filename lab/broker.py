# SPDX-License-Identifier: Apache-2.0
"""One Kafka broker, or the ZooKeeper that a cluster needs, in a JVM of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path

from weir.lab.errors import Timeout
from weir.lab.network import LOOPBACK
from weir.lab.processes import Process, Supervisor, tail
from weir.lab.settings import Place

_UP = r"\[KafkaServer id=\d+\] started|\[KafkaRaftServer nodeId=\d+\] Kafka Server started"
_POLL_SECONDS = 0.05


class Broker(Process):
    """A broker: `place` has its ports and addresses, `data` is the folder of its replicas."""

    def __init__(self, supervisor: Supervisor, place: Place, command: Sequence[str], log: Path, data: Path) -> None:
        super().__init__(supervisor, f"broker {place.broker_id}", command, log)
        self.place = place
        self.broker_id = place.broker_id
        self.data = data
        self.ended_at = float("-inf")  # monotonic seconds

    @property
    def properties(self) -> Path:
        """Its server.properties, which it reads at each start."""
        return self.data.parent / "server.properties"

    def wait_until_up(self, seconds: float) -> None:
        """Wait until the broker logs that it has started. Raises ProcessFailed (PortTaken) or Timeout."""
        self.wait_for_line(_UP, seconds)

    def wait(self, seconds: float) -> int:
        """Wait for the end of the process, and note the time. Returns its exit status."""
        status = super().wait(seconds)
        self.ended_at = time.monotonic()
        return status


class ZooKeeper(Process):
    """A single ZooKeeper."""

    def __init__(self, supervisor: Supervisor, command: Sequence[str], log: Path, port: int) -> None:
        super().__init__(supervisor, "ZooKeeper", command, log)
        self.port = port

    def wait_until_up(self, seconds: float) -> None:
        """Wait until it accepts connections. Raises ProcessFailed (PortTaken) or Timeout."""
        deadline = time.monotonic() + seconds
        while True:
            ended = not self.alive
            if ended:
                raise self.failure(f"ended with status {self.wait(0)} before it was up.")
            try:
                with socket.create_connection((LOOPBACK, self.port), timeout=1):
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise Timeout("the start of ZooKeeper", seconds, tail(self.log)) from None
            time.sleep(_POLL_SECONDS)
