# SPDX-License-Identifier: Apache-2.0
"""The tables that the batch jobs write as Parquet, one folder each: their names, and their columns as Spark SQL types.

A day's tables are in `date=2026-11-02/<run>/<table>/`; which runs' are to be read is in POINTER, in the day's folder.
Times are UTC. Rates are bytes/s where nothing else is said, within windows of a minute or an hour (`window`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

ColumnType = Literal["boolean", "double", "int", "long", "string", "timestamp"]

POINTER: Final = "current.json"
"""Names in `run` the folder of the tables of a day, beside facts about its samples."""

WINDOW_SECONDS: Final[Mapping[str, int]] = MappingProxyType({"minute": 60, "hour": 3600})


@dataclass(frozen=True, slots=True)
class Table:
    """A table's name, which is also its folder's, and the type of each column, in order."""

    name: str
    columns: Mapping[str, ColumnType]


PARTITION_RATES: Final = Table(
    "partition_rates",
    MappingProxyType(
        {
            "window_start": "timestamp",
            "window": "string",  # a key of WINDOW_SECONDS
            "side": "string",  # leader or follower
            "topic": "string",
            "partition": "int",
            "mean_bytes_per_second": "double",
            "max_bytes_per_second": "double",
            "p95_bytes_per_second": "double",
            "bytes": "long",
        }
    ),
)
"""Replication of each partition."""

BROKER_RATES: Final = Table(
    "broker_rates",
    MappingProxyType(
        {
            "window_start": "timestamp",
            "window": "string",
            "broker_id": "int",
            "side": "string",
            "throttled": "boolean",
            "mean_bytes_per_second": "double",
            "max_bytes_per_second": "double",
            "p95_bytes_per_second": "double",
            "bytes": "long",
        }
    ),
)
"""Replication of each broker, throttled replicas apart from the others."""

BROKER_SAMPLES: Final = Table(
    "broker_samples",
    MappingProxyType(
        {
            "broker_id": "int",
            "side": "string",
            "start": "timestamp",
            "end": "timestamp",
            "bytes_throttled": "long",
            "bytes_unthrottled": "long",
        }
    ),
)
"""Replication of each broker by sample, for ranges of less than an hour."""

THROTTLE_ACCURACY: Final = Table(
    "throttle_accuracy",
    MappingProxyType(
        {
            "quota_id": "string",
            "broker_id": "int",
            "side": "string",
            "rate_bytes_per_second": "long",
            "policy": "string",  # strict or kip73
            "start": "timestamp",
            "end": "timestamp",
            "seconds": "double",
            "mean_over_quota": "double",
            "worst_1s_over_quota": "double",
            "worst_10s_over_quota": "double",
            "seconds_over": "double",
            "seconds_left_out": "double",  # of the samples in which partitions were left out
            "bytes_left_out": "long",  # how many bytes fewer than the quota allows passed in those samples
        }
    ),
)
"""What each quota did while it was in force, on each broker and side."""

THROTTLE_MINUTES: Final = Table(
    "throttle_minutes",
    MappingProxyType(
        {
            "window_start": "timestamp",
            "quota_id": "string",
            "broker_id": "int",
            "side": "string",
            "start": "timestamp",  # of the row in throttle_accuracy
            "seconds": "double",
            "bytes": "long",
            "worst_1s_over_quota": "double",
            "worst_10s_over_quota": "double",  # of the 10 seconds that end in the minute
            "seconds_over": "double",
            "seconds_left_out": "double",
            "bytes_left_out": "long",  # below 0 where more passed than the quota allows
        }
    ),
)
"""The minutes of each row of THROTTLE_ACCURACY, for ranges that have a part of it."""

MOVES: Final = Table(
    "moves",
    MappingProxyType(
        {
            "topic": "string",
            "partition": "int",
            "replica": "int",  # the id of the broker that was behind
            "broker_id": "int",  # the id of the broker whose sidecar saw it
            "side": "string",
            "start": "timestamp",
            "end": "timestamp",  # null where it had not caught up
            "bytes": "long",
            "bytes_throttled": "long",
            "mean_bytes_per_second": "double",
            "quota_bytes_per_second": "long",  # the last one in force; null where there was none
            "longest_stall_seconds": "double",
        }
    ),
)
"""Spans in which a replica was behind until it had caught up. Only throttled ones, and those long out of sync."""

REPLICA_LAG: Final = Table(
    "replica_lag",
    MappingProxyType(
        {
            "topic": "string",
            "partition": "int",
            "replica": "int",
            "broker_id": "int",
            "side": "string",
            "start": "timestamp",
            "end": "timestamp",
            "seconds_to_in_sync": "double",  # null where it was not in sync by then
            "max_lag_messages": "long",
            "max_lag_seconds": "double",
            "stuck_spans": "long",
            "stuck_seconds": "double",
        }
    ),
)
"""Spans in which a replica was out of sync, with how often and how long it received nothing."""

BEHIND_MINUTES: Final = Table(
    "behind_minutes",
    MappingProxyType(
        {
            "window_start": "timestamp",
            "topic": "string",
            "partition": "int",
            "replica": "int",
            "broker_id": "int",
            "side": "string",
            "start": "timestamp",  # of the row in moves or replica_lag
            "bytes": "long",
            "bytes_throttled": "long",
            "max_lag_messages": "long",
            "longest_stall_seconds": "double",  # of those that ended in the minute
            "stall_end": "timestamp",  # of the longest one; null where none ended, or it was of 0 s
            "stuck_spans": "long",
            "stuck_seconds": "double",
        }
    ),
)
"""The minutes of each row of MOVES and REPLICA_LAG, for ranges that have a part of it."""

LIMITS: Final = Table(
    "limits",
    MappingProxyType(
        {
            "window_start": "timestamp",
            "window": "string",
            "client_id": "string",
            "role": "string",  # sink, source, dlq, mirror or other
            "connector": "string",  # null where the client's id names none, and so is the task
            "task": "int",
            "entry": "string",
            "limit_group": "string",
            "record_rate_limit": "double",  # records/s; null where there was none
            "records": "long",
            "mean_records_per_second": "double",
            "max_records_per_second": "long",
            "throttled_ratio": "double",
        }
    ),
)
"""What clients with limits by records did, over all brokers."""

CLIENT_RATES: Final = Table(
    "client_rates",
    MappingProxyType(
        {
            "window_start": "timestamp",
            "broker_id": "int",
            "seconds": "double",  # of the samples that ended in the minute
            "bytes_in": "long",  # from clients to the broker
            "bytes_out": "long",
        }
    ),
)
"""What clients moved through a broker's sidecar, by minute."""

COVERAGE: Final = Table(
    "coverage",
    MappingProxyType(
        {
            "broker_id": "int",
            "window_start": "timestamp",
            "samples": "long",  # whole ones that ended in the minute
            "seconds": "double",  # of these together
            "missing": "long",  # whose numbers lie between that of one of them and that of the one before
            "quarantined": "long",  # samples that are not whole
        }
    ),
)
"""What was sampled of each broker, by minute."""

ABSENCES: Final = Table(
    "absences",
    MappingProxyType(
        {
            "replica": "int",  # the id of the broker that was away
            "broker_id": "int",  # the id of the broker whose sidecar missed it
            "start": "timestamp",  # its last fetch
            "end": "timestamp",  # null where it had not come back
            "seen_until": "timestamp",  # the last sample that tells of it
        }
    ),
)
"""Spans in which a follower had no connection with a leader that it had fetched from."""

ALL_TABLES: Final = (
    *(PARTITION_RATES, BROKER_RATES, THROTTLE_ACCURACY, THROTTLE_MINUTES, MOVES, REPLICA_LAG, BEHIND_MINUTES),
    *(BROKER_SAMPLES, LIMITS, CLIENT_RATES, COVERAGE, ABSENCES),
)
