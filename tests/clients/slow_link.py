# SPDX-License-Identifier: Apache-2.0
"""A plain link to a broker over which answers come late: what clients have of Kafka alone, at a rate like a limit's.

`python -m tests.clients.slow_link PORT UPSTREAM SECONDS` runs until it is killed, which breaks all connections.
"""

from __future__ import annotations

import asyncio
import sys

from weir.lab.network import LOOPBACK


async def _lead(port: int, upstream: int, seconds: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(LOOPBACK, upstream)
        await asyncio.gather(_move(reader, requests, 0.0), _move(answers, writer, seconds))

    server = await asyncio.start_server(serve, LOOPBACK, port)
    print("up", flush=True)
    await server.serve_forever()


async def _move(source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        while data := await source.read(2**16):
            loop.call_later(seconds, target.write, data)
    except ConnectionError:
        pass
    loop.call_later(seconds, target.close)


if __name__ == "__main__":
    asyncio.run(_lead(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
