# SPDX-License-Identifier: Apache-2.0
"""A made-up sidecar behind a real admin server, in a thread of its own: what its page shows is set by the test."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS
from weir.proxy.admin.access import Access
from weir.proxy.admin.fleet import Fleet
from weir.proxy.admin.history import History
from weir.proxy.admin.http import AdminServer
from weir.proxy.config.address import Address
from weir.proxy.config.tables import Admin, ThrottleTable
from weir.proxy.limits.layers import LimitLayers
from weir.proxy.log import EventLog
from weir.proxy.shares.exchange import ShareAnswer
from weir.proxy.throttle.table import LayeredThrottle

MB = 1_000_000
HOSTILE = "<img src='http://127.0.0.1:9/x' onerror='document.title=1'><script>document.title=2</script>"
LONGEST = "long-" + "x" * 244
NOW = 700.0  # seconds on the sidecar's clock


def late(topic: str, partition: int, messages: int, **more: Any) -> dict[str, Any]:
    row = {"topic": topic, "partition": partition, "replica": 2, "lag_seconds": 754.2, "lag_messages": messages}
    return {**row, "stuck": False, **more}


def quota(name: str, allowed: int | None = None, used: float = 0.0, **more: Any) -> dict[str, Any]:
    rates = {"bytes_per_second": allowed, "rate_bytes_per_second": used}
    return {"name": name, **rates, "mode": "enforce", "would_leave_out": 0, **more}


def side(allowed: int | None = None, used: float = 0.0, **more: Any) -> dict[str, Any]:
    """One side's part of a status: what was asked for, and nothing behind where the test says nothing else."""
    return {
        "quota_bytes_per_second": allowed,
        "throttled_rate_bytes_per_second": used,
        "quotas": [quota("configured", allowed, used)],
        "throttled_topics": [],
        "passthrough": {},
        "links": [],
        "lag": lag(),
        "held_up_by": {"by": "nobody", "sentence": "Nothing is behind."},
        "connections": 1,
        **more,
    }


def lag(**more: Any) -> dict[str, Any]:
    return {
        "messages": 0,
        "partitions_behind": 0,
        "partitions_stuck": 0,
        "max_seconds": 0.0,
        "falls_per_second": None,
        "time_left_seconds": None,
        "stands_still": False,
        "none_for_seconds": 700.0,
        "worst": [],
        **more,
    }


def link(peer: int, behind: int = 0, waits: float | None = None) -> dict[str, Any]:
    return {"peer": peer, "replica_id": peer, "throttled_partitions_behind": behind, "left_out_for_seconds": waits}


MOVING = side(
    5 * MB,
    4.96 * MB,
    throttled_topics=["orders"],
    passthrough={"fetch_version": 12, "tls": 3},
    links=[link(2, 12, 0.08), link(2), link(3, 0)],
    lag=lag(
        messages=1_234_567,
        partitions_behind=12,
        max_seconds=754.2,
        falls_per_second=4843.2,
        time_left_seconds=254.9,
        none_for_seconds=0.0,
        worst=[late("orders", number, 400_000 - 31_000 * number) for number in range(12)],
    ),
    held_up_by={"by": "quota", "sentence": "The quota holds 12 partitions of broker 2 back: 4.96 MB/s of 5 MB/s used."},
)


def status(**sides: Any) -> dict[str, Any]:
    return {
        "version": "1.2.3",
        "broker_id": 1,
        "state": "serving",
        "ready": True,
        "not_ready": [],
        "uptime_seconds": 93_784.0,
        "event_loop": {"busy": 0.123, "late_seconds": 0.001},
        "troubles": {},
        "topic_ids_unknown": 0,
        "fleet": True,
        "settings": {LEADER_RATE: {"value": 5 * MB, "source": "http", "ends_in_seconds": 4325.0}},
        "routes": [{"side": "leader"}, {"side": "follower"}],
        "sides": {"leader": MOVING, "follower": side(), **sides},
    }


def samples(rates: list[float], allowed: int | None, other: float = 2 * MB, messages: int = 0) -> dict[str, Any]:
    """A sample for each rate, a second apart, the last one now."""
    times = [NOW - len(rates) + number for number in range(1, len(rates) + 1)]
    return {
        "at": times,
        "throttled": rates,
        "other": [other] * len(rates),
        "lag_messages": [messages] * len(rates),
        "quotas": {} if allowed is None else {"configured": {"rate": rates, "limit": [allowed] * len(rates)}},
    }


def waves(rate: float, count: int) -> list[float]:
    return [rate * (0.99 + 0.02 * math.sin(number / 3) + 0.01 * math.sin(number)) for number in range(count)]


def fleet_row(broker_id: int, **sides: Any) -> dict[str, Any]:
    return {
        "admin": f"10.0.0.{broker_id}:9690",
        "broker_id": broker_id,
        "version": "1.2.3",
        "state": "serving",
        "ready": True,
        "not_ready": [],
        "sides": {"leader": side(), "follower": side(), **sides},
    }


def waiting() -> dict[str, Any]:
    """A status of `weir run --wait` before it has its file."""
    reason = "tokens: no such file"
    return {
        "version": "1.2.3",
        "broker_id": None,
        "state": "waiting",
        "ready": False,
        "not_ready": [reason],
        "troubles": {"not_started": reason},
        "sides": {},
    }


def limited(client_id: str, allowed: float | None = 1000.0, **more: Any) -> dict[str, Any]:
    """A client's row in a status: a sink task that is kept waiting."""
    return {
        "client_id": client_id,
        "kind": "sink",
        "connector": "s3",
        "task": 0,
        "entry": "connector-consumer-s3-*",
        "per": "task",
        "group": client_id,
        "limits": {} if allowed is None else {"record.rate.limit": allowed},
        "share": 1.0,
        "allowed_records_per_second": allowed,
        "rank": 0,
        "records": 90_000,
        "records_per_second": 998.2,
        "most_records_per_second": 1025,
        "throttled_ratio": 0.874,
        "shares_with": [],
        "shares_with_more": 0,
        **more,
    }


def limit_samples(row: dict[str, Any], rates: list[float]) -> dict[str, Any]:
    """The history of what has a client's limit."""
    times = [NOW - len(rates) + number for number in range(1, len(rates) + 1)]
    whose = {key: row[key] for key in ("entry", "per", "group")}
    return {**whose, "at": times, "rate": rates, "allowed": [row["allowed_records_per_second"]] * len(rates)}


class _History:
    def __init__(self) -> None:
        self.limits: list[dict[str, Any]] = []
        moved = [0.0] * 120 + waves(5 * MB, 480)
        self.sides = {"leader": samples(moved, 5 * MB, messages=90_000), "follower": samples([0.0] * 600, None)}

    def as_plain(self, after: float) -> dict[str, Any]:
        def newer(columns: dict[str, Any]) -> dict[str, Any]:
            kept = [number for number, at in enumerate(columns["at"]) if at > after]
            shown = {name: [columns[name][number] for number in kept] for name in columns if name != "quotas"}
            quotas = {
                name: {what: [column[number] for number in kept] for what, column in of.items()}
                for name, of in columns["quotas"].items()
            }
            return {**shown, "quotas": quotas}

        sides = {name: newer(columns) for name, columns in self.sides.items()}
        return {"now": NOW, "sides": sides} | ({"limits": self.limits} if self.limits and after < NOW else {})


class _Fleet:
    is_known = True

    def __init__(self) -> None:
        self.looks = 0
        self.answer = [
            fleet_row(1, leader=MOVING),
            fleet_row(2, follower={**MOVING, "quotas": [quota("configured", 20 * MB, 4.96 * MB)]}),
            {"admin": "10.0.0.3:9690", "broker_id": 3, "error": "Connection refused"},
        ]

    async def rows(self) -> list[dict[str, Any]]:
        self.looks += 1
        return self.answer


class MadeUp:
    """What the page shows. `fails` makes every status an error."""

    def __init__(self) -> None:
        self.throttle = LayeredThrottle(ThrottleTable(), lambda table: None, lambda: 0.0)
        self.samples = _History()
        self.others = _Fleet()
        self.history, self.fleet = cast(History, self.samples), cast(Fleet, self.others)
        self.told: dict[str, Any] = status()
        self.client_limits = LimitLayers(lambda tables: None, lambda: 0.0)
        self.asked = 0
        self.fails = False

    async def set_throttle(self) -> None:
        await self.throttle.merge({LEADER_RATE: 5 * MB, "topics": {"orders": {LEADER_REPLICAS: "*"}}})
        lease = {"seconds": 4325, "owner": "ann", "reason": "new disks"}
        await self.throttle.merge({FOLLOWER_RATE: 20 * MB, "lease": lease})

    async def not_ready(self) -> list[str]:
        return []

    async def status(self) -> dict[str, Any]:
        self.asked += 1
        if self.fails:
            raise RuntimeError("made up")
        return self.told

    def metrics(self, accept: str) -> Iterator[bytes]:
        yield b""

    def pause_capture(self, asked: object | None) -> dict[str, Any]:
        return {"paused": asked is not None}

    def answer_about_shares(self, body: bytes) -> ShareAnswer:
        return ShareAnswer(broker_id=1)


@contextmanager
def served(sidecar: MadeUp) -> Iterator[str]:
    """Serve the page of a made-up sidecar, from a thread; the block gets its URL."""
    loop = asyncio.new_event_loop()
    server = AdminServer(sidecar, EventLog(), Access(Admin(), time.monotonic))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(sidecar.set_throttle(), loop).result(10)
        address = asyncio.run_coroutine_threadsafe(server.start(Address("127.0.0.1", 0)), loop).result(10)
        yield f"http://{address}/"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
