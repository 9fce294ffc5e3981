"""The crowd of `bench.crowd`, a process of its own: `python -m bench.crowd_peers PORT CONNECTIONS ADDRESS`.

Each connection comes from ADDRESS, asks once, and stays. One that is sent away comes again after a second, which is
what Kafka's clients wait at most (reconnect.backoff.max.ms).
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import socket
import sys
import time

from bench.peers import metadata_request
from weir.proxy.event_loop import raise_descriptor_limit

BACKOFF_SECONDS = 1.0
ANSWER_SIZE = 64
_CONNECTS_IN_A_ROW = 50  # as a crowd of programs would: none waits for another


def main() -> int:
    """Come, and stay until the process is ended. Prints a line when each connection has been let in or sent away."""
    port, count, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    raise_descriptor_limit()
    poll = selectors.EpollSelector()
    due = [(0.0, number) for number in range(count)]
    unsettled = set(range(count))
    while True:
        now = time.monotonic()
        for _ in range(_CONNECTS_IN_A_ROW):
            if not due or due[0][0] > now:
                break
            _, number = heapq.heappop(due)
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((address, 0))
            connection.connect_ex(("127.0.0.1", port))
            poll.register(connection, selectors.EVENT_WRITE, number)
        for key, ready in poll.select(0.0 if due and due[0][0] <= now else 0.1):
            connection, number = key.fileobj, key.data  # type: ignore[assignment]
            stays = False
            with contextlib.suppress(OSError):
                if ready & selectors.EVENT_WRITE:
                    connection.send(metadata_request(number, ANSWER_SIZE))
                    poll.modify(connection, selectors.EVENT_READ, number)
                    stays = True
                else:
                    stays = bool(connection.recv(ANSWER_SIZE))
                    unsettled.discard(number)
            if not stays:
                poll.unregister(connection)
                connection.close()
                unsettled.discard(number)
                heapq.heappush(due, (time.monotonic() + BACKOFF_SECONDS, number))
        if not unsettled:
            print("all have come", flush=True)
            unsettled.add(-1)  # said once


if __name__ == "__main__":
    sys.exit(main())
